"""The kernel's length distributions against their definitions, computed in another way."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from foretell.kernel.lengths import (
    LEVELS,
    OVERRUN_TOKENS,
    STRATA,
    WIDTH,
    conditional_quantile,
    draw_levels,
    hazard,
    stratum_of,
    tokens_at,
)
from tests.unit.exact_lengths import Row, conditional_mean, survival

gaps = st.lists(
    st.one_of(st.just(0.0), st.floats(0.01, 500.0)), min_size=len(LEVELS), max_size=len(LEVELS)
)
tails = st.floats(0.1, 500.0)
ages = st.floats(0.0, 6000.0)
open_levels = st.floats(0.001, 0.999)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """Any distribution with a tail, some with atoms (equal knots)."""
    return np.array([*np.cumsum(draw(gaps)), draw(tails)])


def exponential(mean: float) -> Row:
    return np.array([*(-math.log1p(-level) * mean for level in LEVELS), mean])


def certain(tokens: float) -> Row:
    return np.array([*[tokens] * len(LEVELS), 0.0])


def drawn(
    rows: Row, generated: list[int], samples: int, seed: int = 1, first_key: int = 0
) -> NDArray[np.int64]:
    totals = np.zeros((samples, len(generated)), np.int64)
    for i, (row, tokens) in enumerate(zip(rows, generated, strict=True)):
        draw_levels(row, tokens, first_key + i, seed, totals, i)
    return totals


@given(rows(), ages, ages)
def test_survival_falls_from_one(row: Row, a: float, b: float) -> None:
    early, late = sorted((a, b))
    assert 0.0 <= survival(row, late) <= survival(row, early) <= 1.0
    assert survival(row, row[0] / 2) == (1.0 if row[0] > 0 else survival(row, 0.0))


@given(rows())
def test_knots_are_the_quantiles(row: Row) -> None:
    for level, tokens in zip(LEVELS, row, strict=False):
        assert survival(row, tokens) <= 1.0 - level + 1e-12
        assert tokens_at(row, -math.log1p(-level)) == pytest.approx(tokens)


@given(rows(), ages, open_levels, open_levels)
def test_quantiles_ascend_and_lie_above_what_was_generated(
    row: Row, g: float, u: float, v: float
) -> None:
    low, high = (conditional_quantile(row, g, level) for level in sorted((u, v)))
    assert g <= low * (1 + 1e-12)
    assert low <= high


@given(rows(), ages, open_levels)
def test_a_conditional_quantile_divides_the_survivors(row: Row, g: float, u: float) -> None:
    tokens = conditional_quantile(row, g, u)
    alive = hazard(row, g)
    margin = 1e-6 * max(1.0, tokens)
    # P(L > t | L > g) falls through 1 - u at t; at an atom it jumps from one side to the other.
    assert math.exp(alive - hazard(row, tokens + margin)) <= (1 - u) * (1 + 1e-9)
    if tokens - margin > g:
        assert math.exp(alive - hazard(row, tokens - margin)) >= (1 - u) * (1 - 1e-9)


@settings(max_examples=30)
@given(rows(), ages)
def test_the_mean_is_the_integral_of_the_quantiles(row: Row, g: float) -> None:
    # With the hazard h = -log(1 - u) the integral over u becomes that of q(h) exp(-h).
    step = 1 / 256
    h = (np.arange(40 * 256) + 0.5) * step
    start = hazard(row, g)
    quantiles = np.array([tokens_at(row, start + x) for x in h])
    assert conditional_mean(row, g) == pytest.approx(
        np.sum(quantiles * np.exp(-h)) * step, rel=1e-3
    )


@given(rows(), st.integers(0, 10_000))
def test_there_is_always_more_to_come(row: Row, g: int) -> None:
    assert conditional_mean(row, g) > g
    assert drawn(row[None], [g], 8).min() > g


@pytest.mark.parametrize("g", [0, 100, 5000])
def test_an_exponential_forgets_its_age(g: int) -> None:
    row = exponential(200.0)
    assert conditional_mean(row, g) - g == pytest.approx(200.0)
    assert conditional_quantile(row, g, 0.5) - g == pytest.approx(200.0 * math.log(2))


def test_a_certain_length_is_drawn_until_it_is_outlived() -> None:
    row = certain(20.4)
    for g in (0, 19, 20):
        assert conditional_mean(row, g) == conditional_quantile(row, g, 0.01) == 20.4
    assert drawn(np.array([row, row]), [0, 19], 4).tolist() == [[20, 20]] * 4
    assert drawn(row[None], [20], 1).tolist() == [[21]], "one more at the least"
    for g in (21, 500):
        assert conditional_mean(row, g) == conditional_quantile(row, g, 0.9) == g + OVERRUN_TOKENS
        assert drawn(row[None], [g], 2).tolist() == [[g + 10]] * 2


def test_the_levels_of_a_request_cover_the_interval_in_equal_parts() -> None:
    # With an exponential, the level of a draw follows from the draw.
    row = exponential(1e6)
    for key in range(20):
        totals = drawn(row[None], [0], STRATA, first_key=key)[:, 0]
        levels = -np.expm1(-totals / 1e6)
        for count in (2, 4, 8, 64, STRATA):
            parts = np.floor(levels[:count] * count).astype(int)
            assert sorted(parts) == list(range(count))
        assert levels[::2] + levels[1::2] == pytest.approx(1.0, abs=1e-5), "antithetic pairs"


def test_draws_depend_on_key_and_seed_only() -> None:
    many = np.array([exponential(mean) for mean in (50.0, 500.0, 5.0)])
    totals = drawn(many, [0, 7, 300], 8)
    assert (drawn(many, [0, 7, 300], 8) == totals).all()
    assert (drawn(many[1:], [7, 300], 8, first_key=1) == totals[:, 1:]).all()
    assert (drawn(many, [0, 7, 300], 4) == totals[:4]).all(), "more samples keep the first ones"
    assert (drawn(many, [0, 7, 300], 8, seed=2) != totals).any()


def test_strata_are_equally_likely_over_keys_and_over_seeds() -> None:
    expected = 50
    for strata in (
        [stratum_of(key, 3) for key in range(expected * 16)],
        [stratum_of(3, seed) for seed in range(expected * 16)],
    ):
        counts = np.bincount(np.array(strata) * 16 // STRATA, minlength=16)
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < 37.7, "0.1% of random counts exceed it with 15 degrees of freedom"


def test_eight_samples_have_good_means_and_an_honest_spread() -> None:
    n, seeds = 50, range(200)
    many = np.array([exponential(200.0 + 10 * i) for i in range(n)])
    generated = [3 * i for i in range(n)]
    truth = sum(conditional_mean(row, g) for row, g in zip(many, generated, strict=True))
    sigma = math.sqrt(sum(row[WIDTH - 1] ** 2 for row in many))
    sums = np.array([drawn(many, generated, 8, seed).sum(axis=1) for seed in seeds])
    means = sums.mean(axis=1)
    assert means.mean() == pytest.approx(truth, abs=4 * means.std() / math.sqrt(len(seeds)))
    assert means.std() < 0.5 * sigma / math.sqrt(8), "far better than independent samples"
    assert sums.std() == pytest.approx(sigma, rel=0.1), "each sample varies as the sum itself does"
