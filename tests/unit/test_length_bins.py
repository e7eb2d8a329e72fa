"""Bins of output lengths, against lengths drawn from them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.length.bins import (
    BINS,
    EDGES,
    LEVELS,
    LONGEST_TOKENS,
    bin_of,
    estimates,
    means,
    quantiles,
)

weights = st.lists(st.floats(0.0, 1.0), min_size=BINS, max_size=BINS).filter(lambda w: sum(w) > 0.1)


def row(values: list[float]) -> np.ndarray:
    return np.array([values]) / sum(values)


def draws(probabilities: np.ndarray, count: int) -> np.ndarray:
    """Lengths distributed within their bins as `bins` defines it."""
    rng = np.random.default_rng(1)
    at = rng.choice(BINS, count, p=probabilities)
    widths = np.append(np.diff(EDGES), 0.0)
    tail = rng.exponential(LONGEST_TOKENS / 2, count)
    return EDGES[at] + np.where(at < BINS - 1, rng.random(count) * widths[at], tail)


def test_a_length_lies_in_the_bin_that_ends_with_it_at_the_earliest() -> None:
    assert EDGES[0] == 0.0
    assert EDGES[-1] == LONGEST_TOKENS
    assert bin_of(np.array([1, 2, 16_384, 16_385, 10**7])).tolist() == [
        0, 1, BINS - 2, BINS - 1, BINS - 1,
    ]  # fmt: skip
    for tokens in range(1, 2000):
        at = int(bin_of(tokens))
        assert EDGES[at] < tokens <= EDGES[at + 1]


@given(weights)
def test_quantiles_ascend_and_lie_in_bins_that_are_likely(values: list[float]) -> None:
    found = quantiles(row(values))[0]
    assert (np.diff(found) >= 0).all()
    assert (found >= 0).all()


def test_quantiles_and_means_are_those_of_draws() -> None:
    probabilities = np.random.default_rng(0).dirichlet(np.ones(BINS))
    drawn = draws(probabilities, 400_000)
    expected = np.quantile(drawn, LEVELS)
    assert quantiles(probabilities[None])[0] == pytest.approx(expected, rel=0.03)
    for limit in (40.0, 700.0, 20_000.0, math.inf):
        mean = means(probabilities[None], np.array([limit]))[0]
        assert mean == pytest.approx(np.minimum(drawn, limit).mean(), rel=0.02)


def test_estimates_keep_to_their_bounds() -> None:
    probabilities = np.tile(np.random.default_rng(0).dirichlet(np.ones(BINS)), (3, 1))
    free, cut, between = estimates(probabilities, [(0, 0), (0, 100), (300, 2000)], "model")
    assert free.source == cut.source == "model"
    assert cut.expected_tokens < 100 < free.expected_tokens
    assert [level for level, _ in cut.quantiles] == list(LEVELS)
    assert max(tokens for _, tokens in cut.quantiles) == 100
    assert {between.quantiles[0][1], between.quantiles[-1][1]} == {300, 2000}
    drawn = np.clip(draws(probabilities[0], 400_000), 300, 2000)
    assert between.expected_tokens == pytest.approx(drawn.mean(), rel=0.01)
    certain = np.zeros((1, BINS))
    certain[0, 0] = 1.0
    assert estimates(certain, [(0, 0)], "model")[0].expected_tokens == 1.0  # at least one token
