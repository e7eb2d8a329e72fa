"""Scores of estimated output lengths.

A length is scored as it was observed, also if the answer was cut off (censored): placement needs
to know what the engine generates until then. All lengths are in tokens, at least 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import kendalltau, spearmanr

from foretell.length.adapted import TextEncoder
from foretell.length.bins import LEVELS, quantiles
from foretell.model import LengthEstimate
from foretell.tools.length.dataset import Example

Floats = NDArray[np.float64]

INTERVALS = {"50": (0.25, 0.75), "80": (0.1, 0.9), "95": (0.025, 0.975)}
"""Levels that bound the central intervals, by the percentage they should hold."""
_MEDIAN = LEVELS.index(0.5)
_TEMPERATURES = np.arange(0.7, 1.5, 0.02)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of one source of estimates. Correlations are None if either side is constant."""

    mae: float
    """Mean |median - observed|, tokens."""
    error_rate: float
    """Mean |median - observed| / observed."""
    acc_25: float
    """Share of medians within 25 tokens of what was observed."""
    acc_50: float
    acc_100: float
    spearman: float | None
    kendall: float | None
    """Kendall's tau-b."""
    pinball: float
    """Mean over `LEVELS` and estimates, tokens."""
    coverage: dict[str, float]
    """Share of lengths within each of `INTERVALS`, ends included."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def score(quantiles: Floats, observed: ArrayLike) -> Scores:
    """Scores of `quantiles` (n, `LEVELS`), as of `quantiles_of`, for lengths (n,); n > 0."""
    lengths = np.asarray(observed, dtype=np.float64)
    medians = quantiles[:, _MEDIAN]
    errors = np.abs(medians - lengths)
    return Scores(
        mae=float(errors.mean()),
        error_rate=float((errors / lengths).mean()),
        acc_25=float((errors <= 25).mean()),
        acc_50=float((errors <= 50).mean()),
        acc_100=float((errors <= 100).mean()),
        spearman=_correlation(spearmanr, medians, lengths),
        kendall=_correlation(kendalltau, medians, lengths),
        pinball=pinball(quantiles, lengths),
        coverage=coverage(quantiles, lengths),
    )


def quantiles_of(estimates: Sequence[LengthEstimate]) -> Floats:
    """Tokens at `LEVELS`, (n, `LEVELS`).

    Missing levels are interpolated linearly in the cumulative hazard -log(1 - level), starting at
    (0, 0), and extrapolated with the slope of the last two, as the twin does
    (foretell/length/distribution.py). An estimate without quantiles is constant over all levels.
    """
    found = np.empty((len(estimates), len(LEVELS)))
    for row, estimate in zip(found, estimates, strict=True):
        levels = tuple(level for level, _ in estimate.quantiles)
        tokens = [length for _, length in estimate.quantiles]
        if levels == LEVELS:
            row[:] = tokens
        elif tokens:
            row[:] = _interpolated(levels, tokens)
        else:
            row[:] = estimate.expected_tokens
    return found


def _interpolated(levels: tuple[float, ...], tokens: list[float]) -> Floats:
    own = np.concatenate(([0.0], -np.log1p(-np.array(levels))))
    lengths = np.concatenate(([0.0], tokens))
    wanted = -np.log1p(-np.array(LEVELS))
    slope = (lengths[-1] - lengths[-2]) / (own[-1] - own[-2])
    beyond = slope * np.maximum(0.0, wanted - own[-1])
    return np.asarray(np.interp(wanted, own, lengths) + beyond)


def score_of(encoder: TextEncoder, examples: Sequence[Example]) -> Scores:
    """Scores of `encoder`'s estimates for the examples."""
    conversations = [example.conversation for example in examples]
    found, _ = encoder.read(conversations, [example.model_name for example in examples])
    return score(quantiles(found), [example.output_tokens for example in examples])


def fitting_temperature(probabilities: Callable[[float], Floats], observed: ArrayLike) -> float:
    """The temperature at which intervals contain the promised shares of the `observed` lengths
    (n,). `probabilities` returns (n, `BINS`) at a temperature. Training targets are spread over
    neighbouring bins, which makes a model a little less certain than it should be.
    """
    lengths = np.asarray(observed, dtype=np.float64)

    def off(temperature: float) -> float:
        held = coverage(quantiles(probabilities(temperature)), lengths)
        return sum(abs(held[name] - (high - low)) for name, (low, high) in INTERVALS.items())

    return round(float(min(_TEMPERATURES, key=off)), 2)


def pinball(quantiles: Floats, observed: Floats) -> float:
    """Mean over `LEVELS` and rows of max(level * short, (level - 1) * short)."""
    short = observed[:, None] - quantiles
    levels = np.array(LEVELS)
    return float(np.maximum(levels * short, (levels - 1.0) * short).mean())


def coverage(quantiles: Floats, observed: Floats) -> dict[str, float]:
    """Share of `observed` in each of `INTERVALS`, ends included."""
    found = {}
    for name, (low, high) in INTERVALS.items():
        below, above = (quantiles[:, LEVELS.index(level)] for level in (low, high))
        found[name] = float(((below <= observed) & (observed <= above)).mean())
    return found


def _correlation(kind: Callable[..., Any], a: Floats, b: Floats) -> float | None:
    """A correlation of `scipy.stats`; None if either side is constant."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(kind(a, b).statistic)
