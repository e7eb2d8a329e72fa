"""Offline requests beside online ones in vLLM's real scheduler; no engine runs."""

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scenarios import VARIANTS, drive

from foretell.cosched.deadlines import OFFLINE_APART
from foretell.services.backend.vllm.cosched import seams
from foretell.services.backend.vllm.cosched.scheduler import CoScheduler
from foretell.tools.verify.engine_loop import Iteration, VerifiedLoop, unique_prompt
from foretell.tools.verify.installed import engine_config
from foretell.v1 import snapshot_pb2

pytestmark = pytest.mark.vllm

OFFLINE = {"class": "offline"}
SEEDS = 40


def loop_of(**changes: Any) -> VerifiedLoop:
    return VerifiedLoop(engine_config(enable_prefix_caching=True, **changes), CoScheduler)


CO_SCHEDULED = [
    name
    for name, each in VARIANTS.items()
    if each.kv_cache_groups == 1 and not each.num_speculative_tokens
]
"""Engines of other kinds serve like stock vLLM."""


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("seed", range(8))
def test_without_offline_requests_each_step_is_vllms_own(name: str, seed: int) -> None:
    config = VARIANTS[name]
    assert drive(config, CoScheduler, seed) == drive(config, None, seed)


@pytest.mark.parametrize("name", CO_SCHEDULED)
@pytest.mark.parametrize("seed", range(4))
def test_after_the_last_offline_request_each_step_is_vllms_own(name: str, seed: int) -> None:
    """Except for what is cached: the block pool is reset."""

    def with_past(loop: VerifiedLoop) -> None:
        for index in range(5):
            loop.add(f"past {index}", 50, 20, extra_args=OFFLINE)
        loop.run()
        assert loop.scheduler.kv_cache_manager.reset_prefix_cache()
        assert not loop.scheduler.planner.plans

    def timeless(iterations: list[Iteration]) -> list[Iteration]:
        return [replace(each, cached={}) for each in iterations]

    config = replace(VARIANTS[name], enable_prefix_caching=False)
    ours = drive(config, CoScheduler, seed, observe=with_past)
    assert timeless(ours) == timeless(drive(config, None, seed))


class Traffic:
    """Random requests of both classes, under scarce blocks, and their outcomes."""

    def __init__(self, seed: int, **changes: Any) -> None:
        self.rng = random.Random(seed)
        self.loop = loop_of(
            total_blocks=self.rng.choice([40, 80]),
            async_scheduling=seed % 2 == 0,
            max_num_seqs=self.rng.choice([4, 16]),
            watermark_ratio=self.rng.choice([0.0, 0.05]),
            reserve_full_isl=seed % 3 > 0,
            policy=self.rng.choice(["fcfs", "priority"]),
            **changes,
        )
        self.first: dict[str, int] = {}
        self.arrived: dict[str, int] = {}
        self.tokens: dict[str, list[int]] = {}
        self.ended: list[str] = []
        self.aborted: set[str] = set()
        self.steps = self.shared = 0
        update = self.loop.scheduler.update_from_output

        def watched(*args: Any) -> Any:
            result = update(*args)
            for outputs in result.values():
                for output in outputs.outputs:
                    self.first.setdefault(output.request_id, self.steps)
                    self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            return result

        self.loop.scheduler.update_from_output = watched

    def run(self, requests: int = 40) -> "Traffic":
        prefixes = [unique_prompt(f"system {i}", 64) for i in range(3)]
        added = 0
        while added < requests or self.loop.busy:
            if added < requests and (self.rng.random() < 0.3 or not self.loop.busy):
                for _ in range(self.rng.randint(1, 6)):
                    self._add(f"r{added}", prefixes)
                    added += 1
            if self.rng.random() < 0.03 and self.loop.scheduler.requests:
                victim = self.rng.choice(sorted(self.loop.scheduler.requests))
                self.aborted.add(victim)
                self.loop.abort(victim)
            iteration = self.loop.step()
            self.steps += 1
            self.ended += iteration.finished
            self._check()
            assert self.steps < 20_000, "the engine does not come to rest"
        return self

    def _add(self, name: str, prefixes: list[list[int]]) -> None:
        rng = self.rng
        prompt = rng.choice([[], *prefixes]) + unique_prompt(f"prompt {name}", rng.randint(1, 150))
        offline = rng.random() < 0.6
        targets = rng.choice([None, {"slo_ttft_ms": 1000, "slo_tpot_ms": 50}])
        self.arrived[name] = self.steps
        self.loop.add(
            name,
            prompt,
            rng.randint(1, 60),
            eos_after=rng.choice([0, 0, 5, 20]),
            priority=rng.randint(-1, 1),
            extra_args=OFFLINE if offline else targets,
        )

    def _check(self) -> None:
        scheduler = self.loop.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        queue = pool.free_block_queue
        free = queue.get_all_free_blocks()
        assert len(free) == queue.num_free_blocks == len({block.block_id for block in free})
        assert all(block.ref_cnt == 0 for block in free)
        ids = [r.request_id for r in [*scheduler.running, *scheduler.waiting]]
        assert sorted(ids) == sorted(scheduler.requests)
        assert len(scheduler.waiting) == len(ids) - len(scheduler.running)
        assert not scheduler.planner._failed
        of = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        held = [block.block_id for r in scheduler.running for block in of.get(r.request_id, ())]
        assert scheduler.planner._held_by(scheduler.running) == len(set(held))
        self.shared += len(held) - len(set(held))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_request_of_either_class_ends_once_with_all_its_tokens(seed: int) -> None:
    traffic = Traffic(seed).run()
    assert len(traffic.ended) == len(set(traffic.ended))
    assert set(traffic.ended) | traffic.aborted == set(traffic.arrived)
    for name in traffic.ended:
        told = traffic.tokens[name]
        wanted = [traffic.loop._token(name, index) for index in range(len(told))]
        assert told == wanted, f"{name}: python -m pytest {__file__} -k 'with_all and {seed}'"
    pool = traffic.loop.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    assert not traffic.loop.scheduler.planner._jobs
    assert traffic.shared > 0, "no two requests shared a block"
    traffic.loop.close()


def firsts(loop: VerifiedLoop) -> Iterator[tuple[str, int]]:
    """Requests and the iteration in which they were first scheduled."""
    seen: set[str] = set()
    for count in range(100_000):
        if not loop.busy:
            return
        for name in loop.step().scheduled or {}:
            if name not in seen:
                seen.add(name)
                yield name, count


def test_online_requests_are_served_before_offline_ones_that_came_first() -> None:
    loop = loop_of(max_num_seqs=2)
    for index in range(6):
        loop.add(f"offline {index}", 40, 30, extra_args=OFFLINE)
    loop.step()
    loop.add("online", 40, 30)
    order = [name for name, _ in firsts(loop)]
    assert order.index("online") <= 2  # the first two offline ones had the seats
    loop.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_online_request_without_room_takes_that_of_the_least_computed(is_async: bool) -> None:
    loop = loop_of(total_blocks=20, async_scheduling=is_async)
    loop.add("long", 128, 100, extra_args=OFFLINE)
    loop.step()
    loop.add("short", 64, 100, extra_args=OFFLINE)
    for _ in range(6):
        loop.step()
    loop.add("online", 120, 10)
    iterations = [loop.step(), loop.step()]
    assert any("online" in (each.scheduled or {}) for each in iterations)
    assert [name for each in iterations for name in each.preempted] == ["short"]
    loop.run()
    loop.close()


def test_offline_requests_that_share_a_prefix_follow_each_other() -> None:
    """Their common blocks are computed once, in any order of arrival and with others in between."""
    prefixes = [unique_prompt(f"book {index}", 256) for index in range(4)]

    def hits(cls: type[Any] | None) -> int:
        config = engine_config(total_blocks=40, max_num_seqs=2, enable_prefix_caching=True)
        loop = VerifiedLoop(config, cls)
        for index in range(24):
            prompt = prefixes[index % 4] + unique_prompt(f"question {index}", 20)
            loop.add(f"r{index}", prompt, 4, extra_args=OFFLINE)
        cached = sum(sum(each.cached.values()) for each in loop.run())
        loop.close()
        return cached

    assert hits(CoScheduler) >= 20 * 256 > 2 * hits(None)


def test_one_that_is_passed_over_comes_in_the_end() -> None:
    """However many requests arrive whose blocks are cached."""
    loop = loop_of(max_num_seqs=1, total_blocks=60)
    book = unique_prompt("book", 256)
    loop.add("reader", [*book, 5], 1, extra_args=OFFLINE)
    loop.step()
    loop.add("alone", 256, 1, extra_args=OFFLINE)
    waiting, order = 10, []
    for index in range(200):
        while len(loop.scheduler.waiting) < waiting:
            loop.add(
                f"reader {len(loop.scheduler.requests)} {index}",
                [*book, index],
                1,
                extra_args=OFFLINE,
            )
        order += loop.step().new
    assert 3 * waiting < order.index("alone") <= 5 * waiting
    for name in sorted(loop.scheduler.requests):
        loop.abort(name)
    loop.close()


@pytest.mark.parametrize(
    "break_it",
    [
        lambda planner: setattr(planner, "_plan", None),
        lambda planner: setattr(planner, "_make_room", None),
        lambda planner: setattr(planner, "_offer", None),
        lambda planner: setattr(planner, "_steps", None),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_plan_that_fails_leaves_the_engine_serving(
    break_it: Callable[[Any], None], is_async: bool
) -> None:
    loop = loop_of(total_blocks=60, async_scheduling=is_async)
    for index in range(12):
        loop.add(f"r{index}", 60, 30, extra_args=OFFLINE if index % 2 else None)
    for _ in range(3):
        loop.step()
    break_it(loop.scheduler.planner)
    ended = [name for each in loop.run() for name in each.finished]
    assert len(ended) == len(set(ended)) == 12
    assert loop.scheduler.planner._failed
    assert loop.free_blocks == 60
    loop.close()


def test_where_it_cannot_attach_it_serves_as_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams, "_ATTRIBUTES", ("what_is_not_there",))
    config = VARIANTS["async-fcfs"]
    assert drive(config, CoScheduler, 1) == drive(config, None, 1)
    assert VerifiedLoop(config, CoScheduler).scheduler.planner is None


def test_snapshots_say_who_is_offline_and_what_online_requests_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORETELL_PLUGIN_SNAPSHOT_ENDPOINT", f"shm://{tmp_path}/snapshots")
    loop = loop_of(max_num_seqs=1)
    told: list[Any] = []
    loop.scheduler.foretell.recorder._publish = lambda *parts: told.append(
        snapshot_pb2.EngineSnapshot.FromString(b"".join(parts))
    )
    for index in range(3):
        loop.add(f"offline {index}", 40, 5, extra_args=OFFLINE)
    loop.step()
    assert told[-1].online_ttft_s == math.inf
    loop.add("online", 40, 5, extra_args={"slo_ttft_ms": 500, "slo_tpot_ms": 50})
    arrived_s, began_s = loop.scheduler.requests["online"].arrival_time, time.time()
    loop.step()
    assert told[-1].online_ttft_s == 0.5
    loop.add("late", 40, 5, priority=2**31 - 1)
    loop.run()
    loop.close()
    assert all(each.config.co_schedules for each in told)
    assert {each.config.policy for each in told} == {"fcfs"}
    assert OFFLINE_APART in told[0].config.approximations
    assert told[-1].online_ttft_s == 0.0  # a request without target may come again
    targets: dict[str, list[tuple[float, float, int]]] = {}
    for each in told:
        of = each.running
        rows = zip(of.ttft_target_s, of.tpot_target_s, of.output_tokens, strict=True)
        for name, row in zip(of.request_id, rows, strict=True):
            targets.setdefault(name, []).append(row)
    online = targets.pop("online")
    assert (0.5, 0.05, 0) in online
    # Once the first token is out, the deadlines of the others count from that moment.
    after_s = {ttft_s for ttft_s, _, tokens in online if tokens}
    assert len(after_s) == 1
    assert 0.0 <= after_s.pop() - (began_s - arrived_s) < 60.0
    assert {row[:2] for rows in targets.values() for row in rows} == {(0.0, 0.0)}
    waiting = next(each.waiting for each in told if "late" in each.waiting.request_id)
    offline = [name.startswith("offline") for name in waiting.request_id]
    assert offline == sorted(offline)
    assert sum(offline) == 3  # one of them had to make room for the online one
    assert [each == 2**31 - 1 for each in waiting.priority] == offline
