"""The product-limit estimator against a published example and hand-computed tails."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.length import SurvivalCurve

# Remission times in weeks of 21 patients under 6-MP (Freireich et al., 1963), the example in most
# textbooks on survival analysis; the table below is from there.
REMISSIONS = [6, 6, 6, 7, 10, 13, 16, 22, 23]
CENSORED = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
SURVIVAL = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
RESTRICTED_MEAN_TO_35 = 23.287


def test_survival_matches_the_textbook_example() -> None:
    curve = SurvivalCurve(REMISSIONS, CENSORED, tail_mean_tokens=10.0)
    assert {t: round(curve.survival(t), 3) for t in SURVIVAL} == SURVIVAL
    assert curve.survival(5) == 1.0
    assert curve.survival(9) == curve.survival(7), "a censoring moves no mass"


def test_quantiles_and_mean_of_the_textbook_example() -> None:
    curve = SurvivalCurve(REMISSIONS, CENSORED, tail_mean_tokens=10.0)
    assert curve.quantile(0.1) == 6.0
    assert curve.quantile(0.25) == 13.0
    assert curve.quantile(0.5) == 23.0
    assert curve.mean(35) == pytest.approx(RESTRICTED_MEAN_TO_35, abs=1e-3)
    assert curve.mean(6) == 6.0


def test_complete_observations_give_the_sample_mean_and_quantiles() -> None:
    curve = SurvivalCurve([10, 20, 30, 40], [], tail_mean_tokens=1000.0)
    assert curve.mean() == pytest.approx(25.0)
    assert curve.mean(25) == pytest.approx((10 + 20 + 25 + 25) / 4)
    assert [curve.quantile(q) for q in (0.25, 0.5, 0.75, 0.95)] == [10.0, 20.0, 30.0, 40.0]
    assert curve.survival(40) == 0.0


def test_an_exponential_closes_the_tail_behind_a_censored_maximum() -> None:
    # S = 1/2 from 10 on; beyond 100 nothing is known.
    curve = SurvivalCurve([10], [100], tail_mean_tokens=50.0)
    assert curve.mean(100) == pytest.approx(10 + 0.5 * 90)
    assert curve.mean() == pytest.approx(10 + 0.5 * 90 + 0.5 * 50)
    assert curve.quantile(0.75) == pytest.approx(100 + 50 * math.log(2))
    assert curve.survival(150) == pytest.approx(0.5 * math.exp(-1))


def test_without_observations_the_curve_is_the_tail() -> None:
    curve = SurvivalCurve([], [], tail_mean_tokens=256.0)
    assert curve.mean() == pytest.approx(256.0)
    assert curve.quantile(0.5) == pytest.approx(256.0 * math.log(2))


lengths = st.lists(st.integers(1, 500), max_size=40)


@given(ended=lengths, censored=lengths, limit=st.integers(1, 2000))
def test_every_curve_is_a_distribution(ended: list[int], censored: list[int], limit: int) -> None:
    curve = SurvivalCurve(ended, censored, tail_mean_tokens=100.0)
    values = [curve.survival(t) for t in range(0, 600, 7)]
    assert all(1.0 >= a >= b >= 0.0 for a, b in itertools.pairwise(values))
    quantiles = [curve.quantile(q) for q in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)]
    assert quantiles == sorted(quantiles)
    assert 0.0 <= curve.mean(limit) <= min(limit, curve.mean()) + 1e-6
    for level, length in zip((0.1, 0.5, 0.9), quantiles[::2], strict=True):
        assert curve.survival(length) <= 1.0 - level + 1e-6
