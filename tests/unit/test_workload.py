from itertools import islice
from math import sqrt
from random import Random
from statistics import fmean, stdev

import pytest

from foretell.workload import (
    Arrival,
    EmpiricalLengths,
    LogNormal,
    LogNormalLengths,
    gamma,
    poisson,
    stream,
)

LENGTHS = LogNormalLengths(LogNormal(100, 1.0, 1000), LogNormal(50, 0.5, 400))


def gaps_of(times_s: list[float]) -> list[float]:
    return [b - a for a, b in zip([0.0, *times_s], times_s, strict=False)]


@pytest.mark.parametrize("cv", [0.2, 1.0, 3.0])
def test_gamma_has_its_rate_and_its_burstiness(cv: float) -> None:
    gaps = gaps_of(list(islice(gamma(4.0, cv, Random(1)), 20_000)))
    assert min(gaps) >= 0
    # Three standard errors of the mean, so that the seed was not picked to pass.
    assert fmean(gaps) == pytest.approx(0.25, abs=3 * cv * 0.25 / sqrt(20_000))
    assert stdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.1)


def test_poisson_gaps_are_exponential() -> None:
    gaps = gaps_of(list(islice(poisson(4.0, Random(1)), 20_000)))
    assert fmean(gaps) == pytest.approx(0.25, abs=3 * 0.25 / sqrt(20_000))
    # Memoryless: of the gaps beyond the mean, the share beyond twice the mean is 1/e.
    beyond = [gap for gap in gaps if gap > 0.25]
    assert sum(gap > 0.5 for gap in beyond) / len(beyond) == pytest.approx(0.368, abs=0.02)


def test_log_normal_has_its_mean_and_limits() -> None:
    draws = Random(1)
    lengths = [LogNormal(200, 1.5, 1_000_000).sample(draws) for _ in range(20_000)]
    assert fmean(lengths) == pytest.approx(200, rel=0.05)
    clipped = [LogNormal(200, 1.5, 300).sample(draws) for _ in range(2_000)]
    assert (min(clipped) >= 1, max(clipped)) == (True, 300)
    assert {LogNormal(7, 0.0, 300).sample(draws) for _ in range(10)} == {7}
    assert {LogNormal(0.01, 1.0, 300).sample(draws) for _ in range(10)} == {1}


def test_extreme_draw_does_not_overflow() -> None:
    class Extreme(Random):
        def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
            return mu + 1e6 * sigma

    assert LogNormal(200, 1.5, 300).sample(Extreme()) == 300


def test_empirical_lengths_stay_pairs() -> None:
    pairs = [(1, 10), (2, 20), (3, 30)]
    draws = Random(1)
    seen = [EmpiricalLengths(pairs).sample(draws) for _ in range(3_000)]
    assert set(seen) == set(pairs)
    assert all(seen.count(pair) == pytest.approx(1000, abs=100) for pair in pairs)


def test_stream_is_its_seed() -> None:
    def made(seed: int) -> list[Arrival]:
        draws = Random(seed)
        return stream(50, gamma(4.0, 2.0, draws), LENGTHS, draws, prefix="x")

    first = made(1)
    assert first == made(1)
    assert first != made(2)
    assert [a.request_id for a in first] == [f"x{i}" for i in range(50)]
    assert [a.t_s for a in first] == sorted(a.t_s for a in first)


def test_stream_ends_with_its_times() -> None:
    assert [a.t_s for a in stream(9, [0.5, 1.5], LENGTHS, Random(1))] == [0.5, 1.5]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda: next(poisson(0.0, Random(1))), "rate_per_s"),
        (lambda: next(gamma(-1.0, 1.0, Random(1))), "rate_per_s"),
        (lambda: next(gamma(1.0, 0.0, Random(1))), "cv"),
        (lambda: LogNormal(0.0, 1.0, 9), "mean"),
        (lambda: EmpiricalLengths([]), "at least one"),
        (lambda: EmpiricalLengths([(1, 0)]), "positive"),
    ],
)
def test_nonsense_is_refused(wrong: object, word: str) -> None:
    assert callable(wrong)
    with pytest.raises(ValueError, match=word):
        wrong()
