"""The arithmetic of `reproduce_block`, and that its cases say all that decides a run."""

import json
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

from bench.placement.block import runs
from bench.placement.block.capacity import STEP, TOLERANCE, Search
from bench.placement.block.page import paired_gain
from bench.placement.block.settings import BLOCK, BLOCK_STAR, DEFAULT, LLUMNIX, SETTINGS, Case
from bench.placement.variants import READINGS, make
from bench.stats import change
from foretell.workload import Arrival, Trace


@pytest.mark.parametrize("capacity_qps", [20.0, 29.3, 30.0, 31.7, 55.5])
@pytest.mark.parametrize("steepness", [0.05, 0.9])
def test_search_ends_at_the_crossing(capacity_qps: float, steepness: float) -> None:
    search, probes = Search(30.0, 3.0), 1
    while search.learn(3.0 * exp(steepness * (search.next_qps - capacity_qps))):
        probes += 1
    assert search.capacity_qps == pytest.approx(capacity_qps, rel=1e-3)
    steps_out = abs(capacity_qps - 30.0) / (30.0 * (STEP - 1))
    assert probes <= steps_out + 6


def test_search_ends_on_a_cliff() -> None:
    """No line foretells where: it still halves, or nearly, what is left."""
    search, probes = Search(30.0, 3.0), 1
    while search.learn(0.5 if search.next_qps < 31.234 else 90.0):
        probes += 1
    assert search.capacity_qps == pytest.approx(31.234, rel=TOLERANCE)
    assert probes <= 10


def test_search_survives_a_bump() -> None:
    """P99 is not quite monotone: a good rate above a bad one does not keep it from ending."""
    search = Search(30.0, 3.0)
    assert search.learn(4.0)
    assert search.learn(3.5)
    assert search.next_qps < 30.0 / STEP
    search.learn(1.0)
    search.learn(2.9)
    assert min(search.probes) < search.capacity_qps < 30.0 / STEP


def test_gain_is_taken_seed_by_seed() -> None:
    found = [(LLUMNIX, 1, 10.0), (BLOCK, 2, 22.0), (BLOCK, 1, 12.0), (LLUMNIX, 2, 20.0)]
    rows = [
        {"setting": setting, "scheduler": s.title, "seed": seed, "capacity_qps": qps}
        for setting in ("x", "y")
        for s, seed, qps in found
    ]
    assert paired_gain(rows, "x", BLOCK.title, LLUMNIX.title) == pytest.approx([1.2, 1.1])


def test_changes_up_and_down_cancel() -> None:
    assert change([2.0, 0.5]).startswith("+0.0% (-100.0 to +")
    assert change([0.5, 0.5]) == "-50.0% (-50.0 to -50.0)"


def test_requests_of_a_seed_differ_only_in_times_between_rates() -> None:
    trace = Trace(tuple(Arrival(0.0, 10 + i, 1 + i, "") for i in range(3000)), timed=False)
    slow, fast = (runs.arrivals_for(Case(DEFAULT, BLOCK, qps, 1), trace) for qps in (10.0, 20.0))
    assert [replace(a, t_s=0.0) for a in slow] == [replace(a, t_s=0.0) for a in fast]
    assert [a.t_s for a in slow] == pytest.approx([2 * a.t_s for a in fast])
    other = runs.arrivals_for(Case(DEFAULT, BLOCK, 10.0, 2), trace)
    assert [a.prompt_tokens for a in other] != [a.prompt_tokens for a in slow]


def test_windows_are_disjoint_stretches() -> None:
    setting = replace(DEFAULT, windows=True, requests=10)
    trace = Trace(tuple(Arrival(float(i), i + 1, 1, "") for i in range(25)), timed=True)
    found = [runs.arrivals_for(Case(setting, BLOCK, 2.0, seed), trace) for seed in (1, 2)]
    assert [[a.prompt_tokens for a in window] for window in found] == [
        list(range(1, 11)),
        list(range(11, 21)),
    ]
    with pytest.raises(AssertionError, match="too short"):
        runs.arrivals_for(Case(setting, BLOCK, 2.0, 3), trace)


def test_cases_are_told_apart() -> None:
    cases = [
        Case(setting, scheduler, qps, seed)
        for setting in SETTINGS
        for scheduler in (LLUMNIX, BLOCK, BLOCK_STAR)
        for qps in (30.0, 31.0)
        for seed in (1, 2)
    ]
    keys = {json.dumps(case.key(), sort_keys=True) for case in cases}
    assert len(keys) == len(cases)


def test_results_survive_and_those_of_other_code_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, case = tmp_path / "new" / "kept.jsonl", Case(DEFAULT, BLOCK, 30.0, 1)
    runs.Results(path).put(case, {"x": 1})
    assert runs.Results(path).get(case) == {"x": 1}
    assert runs.Results(path).get(replace(case, seed=2)) is None
    monkeypatch.setattr(runs, "state_of_the_code", lambda: "other")
    assert runs.Results(path).get(case) is None


@pytest.mark.parametrize("name", [*READINGS, LLUMNIX.policy, BLOCK.policy])
def test_schedulers_can_be_made(name: str) -> None:
    assert make(name).needs is not None
