"""`foretell train-small-tagger`: the small model beside a length model, which is its teacher."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy import sparse

from foretell.length.bins import BINS, bin_of
from foretell.length.features import QUICK_NAMES
from foretell.length.small import SmallModel, Weights, standardised
from foretell.length.words import BUCKETS, word_numbers
from foretell.tools.length.dataset import Example, read_examples
from foretell.tools.length.scores import Scores, fitting_temperature, score_of
from foretell.tools.progress import showing
from foretell.tools.train.descent import Examples, descend
from foretell.tools.train.inputs import hold_out
from foretell.tools.train.teachers import taught_by

Array = NDArray[np.float32]
_WORDS, _HIDDEN = 24, 128  # widths
_TAUGHT = 0.9  # share of the length model in the targets; the rest is the answers' lengths
_NEIGHBOURS = 0.8  # bins: deviation of the target around the true one
_HELD_OUT = 0.03


def train_small(
    train: Path, folder: Path, work: Path, tests: Sequence[Path], seed: int, console: Console
) -> dict[str, Scores]:
    """Train, write into `folder`, and score on held-out examples and on each file of `tests`.

    Predictions of the length model in `folder` are kept in `work`. Raises ValueError or OSError if
    the files are wrong.
    """
    with console.status(f"reading {train}"):
        kept, held = hold_out(read_examples(train), _HELD_OUT)
    with showing("asking the length model") as show:
        taught = taught_by([str(folder)], kept, work, show)
    with console.status("training"):
        weights = _trained(kept, taught, np.random.default_rng(seed))
    replace(weights, temperature=np.float32(_temperature(weights, held))).write(str(folder))
    served = SmallModel(Weights.read(folder))
    return {
        "held out": score_of(served, held),
        **{path.name: score_of(served, read_examples(path)) for path in tests},
    }


def _trained(examples: Sequence[Example], taught: Array, rng: np.random.Generator) -> Weights:
    weights = _beginning(examples, taught, rng)
    learned = Examples(
        standardised(weights, [example.conversation for example in examples]),
        _counted([word_numbers(example.conversation) for example in examples]),
        _targets(examples, taught),
    )
    names = ("words", "first", "second", "last")
    found = descend({name: getattr(weights, name) for name in names}, learned, rng)
    trained: dict[str, Any] = dict(found)
    return replace(weights, **trained)


def _beginning(examples: Sequence[Example], taught: Array, rng: np.random.Generator) -> Weights:
    """Weights drawn at random; features scaled to mean 0 and deviation 1."""
    width = len(QUICK_NAMES) + _WORDS
    unscaled = Weights(
        mean=np.zeros(len(QUICK_NAMES), np.float32),
        scale=np.ones(len(QUICK_NAMES), np.float32),
        words=_drawn(rng, BUCKETS, _WORDS, 0.05),
        first=_drawn(rng, width + 1, _HIDDEN, 1.4 / width**0.5),
        second=_drawn(rng, _HIDDEN + 1, _HIDDEN, 1.4 / _HIDDEN**0.5),
        last=_drawn(rng, _HIDDEN + 1, BINS, 0.02),
        temperature=np.float32(1.0),
    )
    unscaled.last[-1] = np.log(taught.mean(axis=0) + 1e-6)
    rows = standardised(unscaled, [e.conversation for e in examples], most=np.inf)
    spread = rows.std(axis=0)
    scale = np.where(spread > 1e-6, 1.0 / np.maximum(spread, 1e-6), 0.0)
    return replace(unscaled, mean=rows.mean(axis=0), scale=scale.astype(np.float32))


def _drawn(rng: np.random.Generator, rows: int, columns: int, deviation: float) -> Array:
    return (rng.normal(size=(rows, columns)) * deviation).astype(np.float32)


def _counted(numbers: list[list[int]]) -> sparse.csr_matrix:
    """The weights of words, as in `small.mean_of_words`."""
    lengths = np.array([len(row) for row in numbers])
    values = np.repeat(1.0 / np.sqrt(np.maximum(lengths, 1)), lengths).astype(np.float32)
    columns = np.array([number for row in numbers for number in row], np.int64)
    begins = np.concatenate(([0], lengths.cumsum()))
    return sparse.csr_matrix((values, columns, begins), shape=(len(numbers), BUCKETS))


def _targets(examples: Sequence[Example], taught: Array) -> Array:
    """Targets from answers and length model, which tells how long a cut-off answer would be."""
    bins = bin_of(np.array([example.output_tokens for example in examples]))
    every = np.arange(BINS)
    near = np.exp(-0.5 * ((every - every[:, None]) / _NEIGHBOURS) ** 2)
    answered = (near / near.sum(axis=1, keepdims=True))[bins]
    longer = np.where(every >= bins[:, None], taught, 0.0) + 1e-9
    cut = np.array([example.censored for example in examples])[:, None]
    answered = np.where(cut, longer / longer.sum(axis=1, keepdims=True), answered)
    return np.asarray((1.0 - _TAUGHT) * answered + _TAUGHT * taught, np.float32)


def _temperature(weights: Weights, held: Sequence[Example]) -> float:
    conversations = [example.conversation for example in held]

    def probabilities(value: float) -> NDArray[np.float64]:
        model = SmallModel(replace(weights, temperature=np.float32(value)))
        return model.read(conversations, [""] * len(held))[0]

    return fitting_temperature(probabilities, [example.output_tokens for example in held])
