"""The placement benchmarks on a few requests, and their arithmetic."""

from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

from bench.placement import broadcast, reproduce_block, yardstick
from bench.placement.bound import pooled
from bench.placement.families import FAMILIES
from bench.placement.simulated import A30, capacity_qps, simulated
from foretell.tools.simulate.options import SimulateOptions
from foretell.workload import Arrival

MACHINE = {"cpu": "", "cores": 2, "memory_gib": 1, "os": "", "python": "", "load_1min": 0}
MADE_BY = {"command": "c", "date": "d", "machine": {**MACHINE, "packages": {}}}


@pytest.mark.parametrize("capacity", [20.0, 29.3, 30.0, 31.7, 55.5])
@pytest.mark.parametrize("steepness", [0.05, 0.9])
def test_a_search_ends_at_the_crossing(capacity: float, steepness: float) -> None:
    probes: list[float] = []

    def p99_s(qps: float) -> float:
        probes.append(qps)
        return 3.0 * exp(steepness * (qps - capacity))

    assert capacity_qps(p99_s, 3.0, 30.0) == pytest.approx(capacity, rel=1e-3)
    assert len(probes) < 20


def test_a_search_ends_on_a_cliff() -> None:
    """No line predicts where the cliff is: each step still halves, or nearly, the interval."""
    found = capacity_qps(lambda qps: 0.5 if qps < 31.234 else 90.0, 3.0, 30.0)
    assert found == pytest.approx(31.234, rel=0.015)


def test_a_search_survives_a_bump() -> None:
    """P99 is not quite monotone: a good rate above a bad one does not prevent the search's end."""
    answers = iter([4.0, 3.5, 1.0, 2.9, 2.95, 2.99, 2.99, 2.99, 2.99, 2.99, 2.99])
    assert capacity_qps(lambda _: next(answers), 3.0, 30.0) < 30.0


def test_every_scheduler_of_blocks_gets_the_same_requests(tmp_path: Path) -> None:
    rows = "".join(f"{64 + i},{20 + i % 7}\n" for i in range(30))
    text = "num_prefill_tokens,num_decode_tokens\n" + rows + "4096,1\n"
    (tmp_path / reproduce_block.SHAREGPT).write_text(text)
    results = []
    for scheduler in reproduce_block.SCHEDULERS:
        for seed in (1, 2):
            case = reproduce_block.Case("default", scheduler, 32.0, seed, 20)
            first, again = (reproduce_block.run(case, tmp_path) for _ in range(2))
            assert first == again
            names = {name: getattr(case, name) for name in type(case).__dataclass_fields__}
            results.append({**names, **first, "search": False})
    page = reproduce_block.tables({**MADE_BY, "rows": results})["tables"]
    assert "| P99 TTFT | -78.6% |" in page


def test_a_request_that_goes_to_all_instances_says_which_was_the_soonest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broadcast, "SAMPLED", 0.3)
    options = SimulateOptions(engines=(A30,))
    arrivals = [Arrival(0.05 * i, 200, 40 + 90 * (i % 5), f"r{i}") for i in range(80)]
    found = broadcast.broadcast(options, arrivals, 1)
    assert found == broadcast.broadcast(options, arrivals, 1)
    assert found["e2e_mape"] < 0.5
    assert found["best predicted_latency"] > 1 / A30.instances
    assert 0.0 <= found["over predicted_latency"] < 0.2


def test_the_yardstick_compares_with_the_best_of_each_kind(tmp_path: Path) -> None:
    family = next(each for each in FAMILIES if each.name == "talks")  # needs no trace
    rows = [
        yardstick.run(yardstick.Case("talks", policy, "tagger", 20.0, seed, 2.0), tmp_path)
        for policy in (*yardstick.POLICIES, yardstick.POOL)
        for seed in (1, 2)
    ]
    page = {**MADE_BY, "capacities_qps": {family.name: 20.0}, "rows": rows}
    text = yardstick.tables(page)["tables"]
    assert text.count("| talks, 18.4/s | unseen |") == 1
    best = yardstick.best_of(page, "talks", "ttft_p99_s", yardstick.WITHOUT_FORECASTS)
    assert f"`{best}`" in text
    assert text.count("| talks | ") == 1


def test_a_pool_is_sooner_than_its_engines_and_no_request_sooner_than_alone() -> None:
    family = next(each for each in FAMILIES if each.name == "talks")
    arrivals = family.arrivals(Path(), 20.0, 60, 1)
    options = SimulateOptions(engines=tuple(family.engines))
    alone = {each.request_id: simulated(options, [each], 1).served[0] for each in (arrivals[0],)}
    engines = simulated(options, arrivals, 1)
    pool = pooled(options, arrivals, 1)
    assert len(pool.served) == len(arrivals)
    assert pool.mean(lambda s: s.ttft_s) <= engines.mean(lambda s: s.ttft_s)
    assert pool.mean(lambda s: s.e2e_s) <= engines.mean(lambda s: s.e2e_s)
    first = pool.served[0]
    assert first.ttft_s >= 0.95 * alone[first.request_id].ttft_s
    # One engine of four at half speed takes away an eighth of the pool's.
    slower = pooled(replace(options, faults=("slow=2:3:0",)), arrivals, 1)
    assert 1.0 < slower.mean(lambda s: s.e2e_s) / pool.mean(lambda s: s.e2e_s) < 1.3
