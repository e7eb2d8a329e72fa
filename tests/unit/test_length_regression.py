"""How log length depends on the features of requests, learnt answer by answer."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from foretell.length.bins import BINS, EDGES, bin_of, quantiles
from foretell.length.regression import Regression

Floats = NDArray[np.float64]

FEATURES = 10
SEEDS = (1, 2, 3)
BASE: Floats = np.full(BINS, 1.0 / BINS)


def requests(count: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """Features, of which the first two explain the lengths, except for noise."""
    seen = rng.normal(size=(count, FEATURES))
    logs = 5.0 + 0.5 * seen[:, 0] - 0.3 * seen[:, 1] + 0.3 * rng.normal(size=count)
    return seen, np.maximum(1, np.round(np.exp(logs))).astype(np.int64)


def told(regression: Regression, seen: Floats, base: Floats = BASE) -> Floats:
    """(n, BINS) of predicted probabilities."""
    return np.diff(regression.below(np.tile(base, (len(seen), 1)), seen), prepend=0.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_features_tell_is_learnt_from_some_hundred_answers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen, tokens = requests(2300, rng)
    regression = Regression(FEATURES)
    for row, length in zip(seen[:300], tokens[:300].tolist(), strict=True):
        regression.observe(BASE, row, length, censored=False)
    low, median, high = quantiles(told(regression, seen[300:]), (0.1, 0.5, 0.9)).T
    later = tokens[300:]
    best = np.exp(5.0 + 0.5 * seen[300:, 0] - 0.3 * seen[300:, 1])
    assert np.abs(median - later).mean() < 1.25 * np.abs(best - later).mean()
    assert ((low <= later) & (later <= high)).mean() == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_cut_off_do_not_drag_it_down(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen, tokens = requests(1500, rng)
    regression = Regression(FEATURES)
    for row, length in zip(seen, tokens.tolist(), strict=True):
        regression.observe(BASE, row, min(length, 180), censored=length > 180)
    believed = quantiles(told(regression, seen), (0.5,))[:, 0]
    assert np.log(believed / tokens).mean() == pytest.approx(0.0, abs=0.12)


def test_before_any_answer_it_is_about_what_the_base_says() -> None:
    at = int(bin_of(300))
    sure = np.zeros(BINS)
    sure[at] = 1.0
    (median,) = quantiles(told(Regression(FEATURES), np.zeros((1, FEATURES)), sure), (0.5,))[0]
    assert EDGES[at] < median < EDGES[at + 1]


def test_what_is_old_fades() -> None:
    seen = np.ones(FEATURES)
    regression = Regression(FEATURES)
    for length in [50] * 3000 + [800] * 600:
        regression.observe(BASE, seen, length, censored=False)
    (median,) = quantiles(told(regression, seen[None]), (0.5,))[0]
    assert median == pytest.approx(800, rel=0.2)


@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
            st.integers(1, 10_000_000),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_whatever_comes_it_remains_a_distribution(
    answers: list[tuple[list[float], int, bool]],
) -> None:
    regression = Regression(3)
    for seen, tokens, censored in answers:
        regression.observe(BASE, np.array(seen), tokens, censored)
    below = regression.below(BASE[None], np.zeros((1, 3)))[0]
    assert math.isclose(below[-1], 1.0)
    assert (np.diff(below) >= 0.0).all()
    assert below[0] >= 0.0
