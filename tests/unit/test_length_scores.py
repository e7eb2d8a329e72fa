"""Scores of length estimates, against cases computed by hand and against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.length.bins import LEVELS
from foretell.model import LengthEstimate
from foretell.tools.length.scores import pinball, quantiles_of, score


def points(*tokens: float) -> list[LengthEstimate]:
    return [LengthEstimate(each, source="model") for each in tokens]


def test_errors_of_the_median() -> None:
    found = score(quantiles_of(points(125, 149, 200, 500)), [100, 200, 100, 100])
    assert found.mae == (25 + 51 + 100 + 400) / 4
    assert found.error_rate == pytest.approx((0.25 + 51 / 200 + 1 + 4) / 4)
    assert (found.acc_25, found.acc_50, found.acc_100) == (0.25, 0.25, 0.75)


def test_pinball_of_points() -> None:
    # 10 tokens too few cost 10 * level; 10 tokens too many, 10 * (1 - level).
    mean = sum(LEVELS) / len(LEVELS)
    assert pinball(quantiles_of(points(90)), np.array([100.0])) == pytest.approx(10 * mean)
    assert pinball(quantiles_of(points(110)), np.array([100.0])) == pytest.approx(10 * (1 - mean))


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=60), st.integers(1, 1000))
def test_no_constant_has_less_pinball_loss_than_the_quantiles(lengths: list[int], k: int) -> None:
    observed = np.array(lengths, dtype=np.float64)
    best = np.quantile(observed, LEVELS, method="inverted_cdf")
    shape = (len(lengths), 1)
    worse = pinball(np.tile(np.full(len(LEVELS), float(k)), shape), observed)
    assert pinball(np.tile(best, shape), observed) <= worse + 1e-9


def test_coverage_counts_the_ends_of_intervals() -> None:
    quantiles = tuple(zip(LEVELS, range(10, 10 * len(LEVELS) + 10, 10), strict=True))
    estimate = LengthEstimate(50.0, quantiles, "model")
    # Levels 0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975 are at 10, 20, ..., 80 tokens.
    observed = [9, 10, 19, 20, 29, 30, 50, 51, 60, 81]
    found = score(quantiles_of([estimate] * len(observed)), observed)
    assert found.coverage == {"50": 0.2, "80": 0.6, "95": 0.8}


def test_quantiles_between_and_beyond_those_given_are_linear_in_the_hazard() -> None:
    """An exponential is a line there, so all of it follows from any two of its quantiles."""
    given_levels = (0.1, 0.5, 0.9)
    quantiles = tuple((level, -100 * math.log1p(-level)) for level in given_levels)
    (found,) = quantiles_of([LengthEstimate(100.0, quantiles, "history")])
    assert found == pytest.approx([-100 * math.log1p(-level) for level in LEVELS])


def test_correlations_by_hand() -> None:
    def correlations(medians: list[float], lengths: list[float]) -> tuple[float | None, ...]:
        found = score(quantiles_of(points(*medians)), lengths)
        return found.spearman, found.kendall

    ordered = [1.0, 2.0, 3.0, 4.0]
    assert correlations(ordered, ordered) == pytest.approx((1.0, 1.0))
    assert correlations(ordered, ordered[::-1]) == pytest.approx((-1.0, -1.0))
    swapped = (1 - 6 * 4 / (4 * 15), (4 - 2) / 6)
    assert correlations(ordered, [2.0, 1.0, 4.0, 3.0]) == pytest.approx(swapped)
    assert correlations([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == (None, None)
    assert correlations([7.0], [7.0]) == (None, None)
