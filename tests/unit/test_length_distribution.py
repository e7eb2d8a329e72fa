"""How each kind of estimate is converted for the kernel."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.kernel.lengths import LEVELS, OVERRUN_TOKENS, WIDTH, conditional_quantile
from foretell.length import LengthHistory
from foretell.length.distribution import SPREAD_SIGMA, Row, certain, exponential, knots, log_normal
from foretell.model import LengthEstimate
from tests.unit.exact_lengths import conditional_mean

QUANTILES = ((0.1, 20.0), (0.25, 50.0), (0.5, 100.0), (0.75, 180.0), (0.9, 320.0), (0.95, 400.0))


def mean(row: Row) -> float:
    return float(conditional_mean(np.array(row), 0.0))


def quantile(row: Row, level: float) -> float:
    return float(conditional_quantile(np.array(row), 0.0, level))


def test_given_quantiles_are_kept_and_the_tail_makes_up_the_mean() -> None:
    row = knots(LengthEstimate(138.0, QUANTILES, "history"))
    assert len(row) == WIDTH
    for level, tokens in QUANTILES:
        assert quantile(row, level) == pytest.approx(tokens)
    assert mean(row) == pytest.approx(138.0)


@pytest.mark.parametrize("stated", [1.0, 1e6])
def test_a_mean_that_the_quantiles_contradict_bends_the_tail_only_so_far(stated: float) -> None:
    row = knots(LengthEstimate(stated, QUANTILES, "history"))
    growth = (400.0 - 180.0) / (math.log(20) - math.log(4))
    assert row[-1] == pytest.approx(growth if stated > 138 else growth / 2)
    assert [quantile(row, level) for level, _ in QUANTILES] == pytest.approx(
        [tokens for _, tokens in QUANTILES]
    )


def test_other_levels_than_the_kernels_are_interpolated_in_the_hazard() -> None:
    exponential_median, exponential_q98 = 100 * math.log(2), 100 * math.log(50)
    row = knots(LengthEstimate(100.0, ((0.5, exponential_median), (0.98, exponential_q98))))
    assert row == pytest.approx(exponential(100.0))


def test_the_prior_is_an_exponential_with_and_without_its_quantiles() -> None:
    assert knots(LengthEstimate(256.0, source="prior")) == exponential(256.0)
    assert knots(LengthHistory().estimate("m", 10)) == pytest.approx(exponential(256.0))


def test_a_hint_is_taken_at_its_word() -> None:
    assert knots(LengthEstimate(77.0, QUANTILES, "hint")) == certain(77.0)


def test_a_point_estimate_gets_a_log_normal_spread_of_its_mean() -> None:
    row = knots(LengthEstimate(300.0, source="model"))
    assert row == pytest.approx(log_normal(300.0, SPREAD_SIGMA))
    assert mean(row) == pytest.approx(300.0)
    exact = NormalDist(math.log(300.0) - SPREAD_SIGMA**2 / 2, SPREAD_SIGMA)
    for level in (0.1, 0.5, 0.9, 0.99):
        assert quantile(row, level) == pytest.approx(math.exp(exact.inv_cdf(level)), rel=0.02)


@given(st.floats(1.0, 1000.0), st.integers(0, 2000))
def test_the_block_rule_is_that_of_the_point_path(expected: float, generated: int) -> None:
    row = np.array(knots(LengthEstimate(expected, QUANTILES, "history"), "block"))
    total = conditional_mean(row, float(generated))
    # "Block: Balancing Load in LLM Serving with Context, Knowledge and Predictive Scheduling".
    left = expected - generated if expected > generated else OVERRUN_TOKENS
    assert total - generated == pytest.approx(left)


def test_quantiles_that_cross_are_lifted_to_the_one_before() -> None:
    crossed = ((0.25, 10.0), (0.5, 50.0), (0.9, 30.0), (0.95, 100.0))
    row = knots(LengthEstimate(40.0, crossed, "model"))
    assert [quantile(row, level) for level in (0.25, 0.5, 0.6, 0.95)] == [10, 50, 50, 100]


def test_equal_quantiles_are_a_certain_length() -> None:
    same = tuple((level, 64.0) for level, _ in QUANTILES)
    assert knots(LengthEstimate(64.0, same, "history")) == certain(64.0)


levels = st.lists(st.integers(1, 99), min_size=2, max_size=9, unique=True).map(sorted)


@given(levels, st.data())
def test_any_estimate_becomes_ascending_knots(percents: list[int], data: st.DataObject) -> None:
    lengths = st.lists(st.floats(0.0, 1e6), min_size=len(percents), max_size=len(percents)).map(
        sorted
    )
    quantiles = tuple(zip((p / 100 for p in percents), data.draw(lengths), strict=True))
    row = knots(LengthEstimate(data.draw(st.floats(0.0, 1e6)), quantiles, "model"))
    assert len(row) == WIDTH
    assert all(math.isfinite(tokens) for tokens in row)
    assert list(row[: len(LEVELS)]) == sorted(row[: len(LEVELS)])
    assert min(row) >= 0.0
