"""The bound on placement: engines made one, and the arithmetic around them."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bench.placement.block.beyond import BLOCK, SETTINGS
from bench.placement.block.bound import ORDERS, BoundCase, Pool, ordered, run, throughput, work
from bench.placement.block.bound_page import blocks
from bench.placement.block.bound_runs import BUSY, PACKED, searched
from bench.placement.block.packing import packed_tokens_per_s, prompts_s
from bench.placement.block.pooled import (
    PooledStepTime,
    alone_s,
    convex_step_time,
    lower_hull,
    pooled_instance,
    pooled_step_time,
)
from bench.placement.block.settings import Scheduler, Setting
from foretell.config import load_profile
from foretell.kernel import tables as kernel
from foretell.kernel.step_time import step_s
from foretell.latency.linear import LinearStepTime, StepTimeModel
from foretell.latency.tables import TabularStepTime, profile_step_time
from foretell.model import BatchShape, Curve, EngineConfig, Grid, StepTables
from foretell.sim import InstanceConfig, Served
from foretell.workload import Arrival
from tools.simulate.cluster import estimator

SHAPES = (
    BatchShape(decode_seqs=3, decode_pairs=700),
    BatchShape(decode_seqs=47, decode_pairs=21_000),
    BatchShape(1, 465, 465 * 466 // 2, 47, 21_000),
    BatchShape(3, 512, 90_000),
)
LINEAR = LinearStepTime((0.02, 1e-4, 1e-8, 1e-5, 8e-5, 7e-7))
A30 = profile_step_time(load_profile("A30/Llama-2-7b-hf"))
H100 = profile_step_time(load_profile("H100/Llama-3.1-8B"))


def times(shape: BatchShape, count: int) -> BatchShape:
    return BatchShape(
        count * shape.prefill_seqs,
        count * shape.prefill_tokens,
        count * shape.prefill_pairs,
        count * shape.decode_seqs,
        count * shape.decode_pairs,
    )


@pytest.mark.parametrize("model", [LINEAR, A30, H100])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("engines", [1, 12])
def test_equal_shares_take_as_long_as_each(
    model: StepTimeModel, shape: BatchShape, engines: int
) -> None:
    pooled = PooledStepTime(pooled_step_time(model.packed(), engines))
    assert pooled.step_s(times(shape, engines)) == pytest.approx(model.step_s(shape), rel=1e-12)


def test_the_model_that_is_pooled_stays_as_it_is() -> None:
    before = [array.copy() for array in A30.packed()]
    pooled_step_time(A30.packed(), 12)
    convex_step_time(A30.packed(), 512)
    for array, kept in zip(A30.packed(), before, strict=True):
        assert np.array_equal(array, kept)


def test_a_model_of_mixed_steps_is_refused() -> None:
    grid = Grid(((1.0, 2.0), (0.0, 1.0)), (0.0,) * 4)
    mixed = Grid(((1.0, 2.0),) * 4, (0.0,) * 16)
    curve = Curve((1.0, 2.0), (0.1, 0.1))
    model = TabularStepTime(StepTables(curve, curve, grid, grid, mixed=mixed))
    with pytest.raises(ValueError, match="mixed"):
        pooled_step_time(model.packed(), 2)


def test_convex_steps_are_no_longer_and_cannot_gain_from_imbalance() -> None:
    convex = PooledStepTime(convex_step_time(A30.packed(), 512))
    seconds = [convex.step_s(BatchShape(1, n, 0)) for n in range(1, 513)]
    measured = [A30.step_s(BatchShape(1, n, 0)) for n in range(1, 513)]
    # Attention of a chunk is in both; the rest of a step is what differs.
    assert all(c <= m + 1e-12 for c, m in zip(seconds, measured, strict=True))
    assert any(m > 1.1 * c for c, m in zip(seconds, measured, strict=True)), "stairs are there"
    assert seconds[-1] == pytest.approx(measured[-1])
    assert convex_step_time(LINEAR.packed(), 512) is LINEAR.packed()


def test_hull_is_below_and_convex() -> None:
    assert lower_hull([0, 1, 2, 3, 4], [4, 3, 3.5, 1, 5]) == [0, 3, 4]
    assert lower_hull([0, 1, 2], [0, 1, 2]) == [0, 2]
    assert lower_hull([1.0], [1.0]) == [0]


def test_pool_has_what_all_engines_have() -> None:
    engine = EngineConfig("m", 16, 100, 8, 64, 512)
    pooled = pooled_instance(InstanceConfig(engine, LINEAR), 3, convex=True).engine
    assert (pooled.total_blocks, pooled.max_num_seqs, pooled.max_num_scheduled_tokens) == (
        300,
        24,
        192,
    )
    assert pooled.long_prefill_token_threshold == 64
    assert pooled.long_prefill_threshold_when_alone


def test_alone_is_a_prompt_in_chunks() -> None:
    packed = LINEAR.packed()
    whole = step_s(packed, 1, 100, 5050, 0, 0)
    assert alone_s(LINEAR, 100, 0, 512) == pytest.approx(whole)
    two = step_s(packed, 1, 64, 2080, 0, 0) + step_s(packed, 1, 36, 36 * 64 + 666, 0, 0)
    assert alone_s(LINEAR, 100, 0, 64) == pytest.approx(two)
    assert alone_s(LINEAR, 100, 64, 64) == pytest.approx(two - step_s(packed, 1, 64, 2080, 0, 0))


def test_throughput_counts_what_was_answered_between() -> None:
    served = [
        Served(f"r{i}", "e", float(i), 1.0, 5.0, 8, 0, None)
        for i in range(100)  # one a second, each with 8 tokens over 4 s
    ]
    found = throughput(served)
    assert found["tokens_per_s"] == pytest.approx(8.0)
    assert found["requests_per_s"] == pytest.approx(1.0)


def test_orders_say_who_goes_first() -> None:
    works = [float((7 * i) % 200) for i in range(200)]
    assert ORDERS["shortest_first"](works) == works
    last = [w for w, p in zip(works, ORDERS["largest_last"](works), strict=True) if p]
    assert last == [199.0]  # of 200, the P99 is the second largest
    assert set(ORDERS["fcfs"](works)) == {0}


def test_orders_go_by_what_schedulers_are_told() -> None:
    setting, noisy = Setting("s", 1.0), Scheduler("", "random", "noise:0.5")
    arrivals = [Arrival(float(i), 10, 1 + i, f"r{i}") for i in range(50)]
    told = estimator("noise:0.5", 3)
    works = [work(a.prompt_tokens, told(a).expected_tokens) for a in arrivals]
    case = BoundCase(setting, noisy, 1.0, 3, None, "shortest_first")
    priorities = [a.priority for a in ordered(case, arrivals)]
    assert priorities == ORDERS["shortest_first"](works)
    assert priorities != sorted(priorities)
    assert ordered(replace(case, order="fcfs"), arrivals) == arrivals


@pytest.fixture
def small(tmp_path: Path) -> tuple[Setting, str]:
    lines = ["num_prefill_tokens,num_decode_tokens", *(f"{50 + i},{20 + i}" for i in range(60))]
    (tmp_path / "lengths.csv").write_text("\n".join(lines))
    setting = Setting(
        "small", 50.0, seats=4, blocks=60, trace="lengths.csv", instances=3, requests=60
    )
    return setting, str(tmp_path)


@pytest.mark.parametrize("order", ORDERS)
def test_pool_serves_what_the_cluster_does_with_less_waiting(
    small: tuple[Setting, str], order: str
) -> None:
    setting, traces = small
    cluster = run(BoundCase(setting, BLOCK, 20.0, 1), traces)
    pool = run(BoundCase(setting, Scheduler("", "random"), 20.0, 1, Pool(), order), traces)
    assert pool["requests"] == cluster["requests"] == 60
    assert pool["ttft_mean_s"] < cluster["ttft_mean_s"]
    assert pool["pooled_ttft_p99_s"] <= pool["ttft_p99_s"]


def test_without_preemptions_nothing_is_computed_again(small: tuple[Setting, str]) -> None:
    setting, traces = small
    roomy = run(BoundCase(replace(setting, blocks=1000), BLOCK, 4.0, 1), traces)
    tight = run(BoundCase(replace(setting, blocks=20), BLOCK, 40.0, 1), traces)
    assert (roomy["preemptions"], roomy["recomputed"]) == (0, 0.0)
    assert tight["preemptions"] > 0
    assert 0.0 < tight["recomputed"] < 0.9


def test_full_engines_answer_no_more_than_packed_ones() -> None:
    one = InstanceConfig(EngineConfig("m", 16, 8, 4, 64, 512), LINEAR)
    # 16 prompt tokens, and 16 steps with 16 to 31 tokens: 1 block and 15 times 2, of 8.
    arrivals = [Arrival(0.0, 16, 16, "a"), Arrival(1.0, 16, 16, "b")]
    running = 8 / (31 / 16)
    assert running > 4  # seats run out first
    shape = BatchShape(250, 4000, 34_000, 4000, 98_000)  # of a thousand engines
    step = PooledStepTime(pooled_step_time(LINEAR.packed(), 1000)).step_s(shape)
    assert packed_tokens_per_s(arrivals, one, 3) == pytest.approx(3 * 4 / step)
    tight = replace(one, engine=replace(one.engine, total_blocks=4))
    assert packed_tokens_per_s(arrivals, tight, 3) < 3 * 4 / step


def test_no_batch_of_whole_prompts_adds_less() -> None:
    draws, model = Random(1), A30.packed()
    convex = convex_step_time(model, 512)
    start, size = convex.layout[kernel.TOKENS, :2]
    knots, seconds = convex.values[start : start + size], convex.values[start + size :]

    def curve_s(tokens: float) -> float:
        return float(np.interp(tokens, knots, seconds))

    def measured_s(tokens: int) -> float:
        x = kernel.padded(model.values, model.layout, float(tokens))
        return float(kernel.curve_s(model.values, model.layout, kernel.TOKENS, x))

    slope = (curve_s(40.001) - curve_s(40.0)) / 0.001
    for _ in range(300):
        decodes, prompts = draws.randint(0, 48), [draws.randint(1, 400)]
        while draws.random() < 0.6:
            prompts.append(draws.randint(1, 400))
        while decodes + sum(prompts) > 512:
            prompts[prompts.index(max(prompts))] //= 2
        added = measured_s(decodes + sum(prompts)) - (curve_s(40.0) + slope * (decodes - 40.0))
        least = prompts_s(prompts, model, convex, 40.0, 48, 512)
        assert least <= added + 1e-9
        crumbs = slope * sum(prompts)
        assert least >= crumbs - 1e-9


def test_cases_differ_by_their_pool() -> None:
    setting = Setting("s", 1.0)
    pools = (None, Pool(), Pool(convex=False), Pool(memory=2.0))
    cases = [BoundCase(setting, BLOCK, 1.0, 1, pool, o) for pool in pools for o in ORDERS]
    assert len({case.key_of_requests() for case in cases}) == len(pools) * len(ORDERS)
    assert replace(cases[1], qps=2.0).key_of_requests() == cases[1].key_of_requests()


def test_the_page_can_be_filled() -> None:
    """Tables need no other numbers than those that the runs give."""
    servers = ["Block", "externality", *dict.fromkeys(s.title for s in BUSY if s.title != "Block")]
    servers += [s.title for setting in SETTINGS for s in searched(setting)]
    names = ("capacity_qps", "ttft_p99_s", "ttft_mean_s", "e2e_mean_s", "e2e_p99_s")
    names += ("preemptions_per_1000", "tokens_per_s", "requests_per_s", "recomputed")
    rows = [
        {"setting": s.name, "server": server, "scheduler": server, "seed": seed}
        | dict.fromkeys(names, (1.0 + 0.1 * (server == "externality")) * seed)
        for s in SETTINGS
        for server in (PACKED, *dict.fromkeys(servers))
        for seed in (1, 2)
    ]
    machine = {"cpu": "", "cores": 1, "memory_gib": 1, "os": "", "python": "", "load_1min": 0}
    page = {"command": "c", "date": "d", "cpu_s": 1, "machine": {**machine, "packages": {}}}
    page |= {"rows": [r for r in rows if r["server"] in servers[2:]]}
    page |= {"packed": [r for r in rows if r["server"] == PACKED], "busy": rows}
    policies = [r for r in rows if r["server"] in servers[:2]]
    text = "\n".join(blocks(page, policies).values())
    assert "110.0% (externality)" in text
    assert text.count(f"| externality | {1.1 * 1.5:.1f} ±") == len(SETTINGS)
