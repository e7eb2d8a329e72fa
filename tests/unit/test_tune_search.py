"""The search of `foretell tune`, over a made-up simulation."""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from foretell.tools.intervals import mean_ratio_interval
from foretell.tools.tune.search import Change, Found, Judge, Measures, Setup, Simulate, search

SEEDS, FRESH = (1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12)
GAIN = Judge("ttft_p99", tolerance=0.03)


def change(kind: str, value: str = "") -> Change:
    return Change(kind, lambda options: options, (f"--{kind} {value}",))


BLOCKS, TWICE, SEATS = change("blocks", "50%"), change("blocks", "100%"), change("seats")


def simulated(ttft_s: Callable[[Setup, int], float], **others: float) -> Simulate:
    """A load that differs by the seed, and a TTFT that follows it."""

    def simulate(runs: Sequence[tuple[Setup, int]]) -> list[Measures]:
        found = []
        for setup, seed in runs:
            load = Random(seed).uniform(1.0, 2.0)
            found.append({"ttft_p99": load * ttft_s(setup, seed), "e2e_mean": 10.0, **others})
        return found

    return simulate


def searched(changes: Sequence[Change], simulate: Simulate, judge: Judge = GAIN) -> Found:
    return search(changes, simulate, judge, SEEDS, FRESH)


def test_a_ratio_of_means_is_within_its_interval() -> None:
    assert mean_ratio_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == (2.0, 2.0, 2.0)
    draws, covered = Random(1), 0
    for _ in range(200):
        base = [draws.uniform(5.0, 10.0) for _ in range(6)]
        mean, low, high = mean_ratio_interval([draws.gauss(0.8, 0.1) * b for b in base], base)
        assert low < mean < high
        covered += low < 0.8 < high
    assert covered > 180  # of 190 that there should be


def test_seeds_with_little_load_do_not_hide_a_gain() -> None:
    """Every other gains much, the rest little or nothing."""
    waits = dict(
        zip(SEEDS + FRESH, ((9.0, 0.6), (12.0, 0.8), (2.0, 1.8), (1.0, 1.0)) * 3, strict=True)
    )

    def simulate(runs: Sequence[tuple[Setup, int]]) -> list[Measures]:
        return [{"ttft_p99": waits[seed][bool(setup)]} for setup, seed in runs]

    found = searched([BLOCKS], simulate)
    assert found.confirmed
    assert found.after.against(found.before, "ttft_p99").ratio < 0.3


def test_nothing_is_changed_where_nothing_gains() -> None:
    noise = {seed: Random(f"noise {seed}") for seed in range(13)}
    found = searched([BLOCKS, SEATS], simulated(lambda setup, seed: noise[seed].uniform(0.8, 1.2)))
    assert not found.confirmed
    assert found.after.setup == ()
    assert len(found.rounds) == 1
    assert {GAIN.verdict(trial, found.rounds[0].on) for trial in found.rounds[0].trials} == {""}


def test_changes_that_help_only_together_are_found() -> None:
    """More seats pay where there is memory for them."""

    def ttft_s(setup: Setup, seed: int) -> float:
        if TWICE in setup:
            return 0.3 if SEATS in setup else 0.5
        return 1.1 if SEATS in setup else 1.0

    found = searched([SEATS, TWICE], simulated(ttft_s))
    assert found.confirmed
    assert found.after.setup == (TWICE, SEATS)
    first, second, last = found.rounds
    assert [GAIN.verdict(trial, first.on) for trial in first.trials] == ["loses", "gains"]
    assert second.kept is not None
    assert last.trials == ()
    assert found.after.against(found.before, "ttft_p99").ratio == pytest.approx(0.3)


def test_the_least_change_that_will_do_is_chosen() -> None:
    """Twice the blocks are better by no more than chance."""
    noise = {seed: Random(f"noise {seed}") for seed in range(13)}
    gains = {BLOCKS: 0.50, TWICE: 0.49}

    def ttft_s(setup: Setup, seed: int) -> float:
        return min((gains[each] for each in setup), default=1.0) * noise[seed].uniform(0.9, 1.1)

    assert searched([BLOCKS, TWICE], simulated(ttft_s)).after.setup == (BLOCKS,)
    gains[TWICE] = 0.2
    assert searched([BLOCKS, TWICE], simulated(ttft_s)).after.setup == (TWICE,)


def test_what_makes_something_else_worse_is_not_recommended() -> None:
    def simulate(runs: Sequence[tuple[Setup, int]]) -> list[Measures]:
        return [
            {"ttft_p99": 0.5 if setup else 1.0, "tpot_p99": 0.11 if setup else 0.10}
            for setup, _ in runs
        ]

    found = searched([SEATS], simulate)
    assert found.after.setup == ()
    assert GAIN.verdict(found.rounds[0].trials[0], found.before) == "worsens P99 TPOT"
    assert searched([SEATS], simulate, Judge("ttft_p99", 0.2)).after.setup == (SEATS,)


def test_luck_with_the_seeds_of_the_search_is_found_out() -> None:
    lucky = simulated(lambda setup, seed: 0.5 if setup and seed in SEEDS else 1.0)
    found = searched([SEATS], lucky)
    assert found.after.setup == (SEATS,)
    assert not found.confirmed


def test_more_goodput_is_better() -> None:
    def simulate(runs: Sequence[tuple[Setup, int]]) -> list[Measures]:
        return [{"ttft_p99": 1.0, "goodput": 0.9 if SEATS in setup else 0.6} for setup, _ in runs]

    assert searched([SEATS], simulate, Judge("goodput", 0.03)).after.setup == (SEATS,)
    assert searched([SEATS], simulate).after.setup == ()


def test_a_goal_that_is_not_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="no request has targets"):
        searched([SEATS], simulated(lambda setup, seed: 1.0), Judge("goodput", 0.03))


def test_impossible_setups_are_not_simulated() -> None:
    asked: list[Setup] = []

    def simulate(runs: Sequence[tuple[Setup, int]]) -> list[Measures]:
        asked.extend(setup for setup, _ in runs)
        return [{"ttft_p99": 0.9 ** len(setup)} for setup, _ in runs]

    possible = {(), (SEATS,), (TWICE,)}
    found = search([SEATS, TWICE], simulate, GAIN, SEEDS, FRESH, lambda setup: setup in possible)
    assert set(asked) == possible
    assert found.after.setup == (SEATS,)
