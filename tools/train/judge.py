"""How good a trained model is, and at which temperature its intervals hold what they promise."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretell.length.adapted import TextEncoder
from foretell.length.bins import quantiles
from foretell.tools.length.dataset import Example
from foretell.tools.length.scores import INTERVALS, Scores, coverage, score

_TEMPERATURES = np.arange(0.7, 1.5, 0.02)


def temperature(
    probabilities: Callable[[float], NDArray[np.float64]], observed: ArrayLike
) -> float:
    """The one with which intervals hold as many of the `observed` lengths (n,) as they promise.

    `probabilities`: (n, `BINS`) at a temperature. Targets that are spread over neighbouring bins
    make a model believe lengths a little less certain than they are.
    """
    lengths = np.asarray(observed, dtype=np.float64)

    def off(value: float) -> float:
        held = coverage(quantiles(probabilities(value)), lengths)
        return sum(abs(held[name] - (high - low)) for name, (low, high) in INTERVALS.items())

    return round(float(min(_TEMPERATURES, key=off)), 2)


def scores(encoder: TextEncoder, examples: Sequence[Example]) -> Scores:
    """How good what `encoder` says of the examples is."""
    found, _ = encoder.read(
        [example.conversation for example in examples],
        [example.model_name for example in examples],
    )
    return score(quantiles(found), [example.output_tokens for example in examples])
