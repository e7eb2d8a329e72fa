"""vLLM's real scheduler in virtual time, with online and offline requests; needs vLLM.

No model runs: a step takes as long as a profile says, and sampled tokens are made up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.outputs import ModelRunnerOutput

from bench.offline import cosched_policies as policies
from bench.offline.course import Look
from bench.offline.documents import Line
from bench.stats import percentile
from foretell.cosched.retention import ONLINE, UNNEEDED
from foretell.latency.linear import StepTimeModel
from foretell.model import BatchShape
from foretell.services.backend.vllm.shape import batch_shape
from foretell.services.backend.vllm.steps import Instant
from foretell.tools.verify.engine_loop import EngineLoop
from foretell.tools.verify.installed import engine_config

WINDOW = 200
"""Offline requests that wait in the engine at any time."""
TARGETS = {"slo_ttft_ms": 1000.0, "slo_tpot_ms": 50.0}
_LAST = 2**31 - 1
HOST_S = 0.001
"""Seconds of a step beside the model."""
_LOOK_EVERY_S = 1.0


ALONE = "online alone"
CONTENDERS: dict[str, tuple[type[Any] | None, str, float]] = {
    ALONE: (None, "fcfs", 0.0),
    "vLLM's default": (None, "fcfs", 0.0),
    "BS": (None, "priority", 0.0),
    "BS+E": (policies.EchoInOrder, "fcfs", 1.0),
    "BS+E+S": (policies.EchoUnmanaged, "fcfs", 1.0),
    "Echo": (policies.Echo, "fcfs", 1.0),
    "HyGen": (policies.HyGen, "fcfs", 1.0),
    "ours, with targets": (policies.Ours, "fcfs", 1.0),
    "ours, as if alone": (policies.Ours, "fcfs", 0.0),
    "Echo, told 0.9": (policies.Echo, "fcfs", 0.9),
    "Echo, told 0.85": (policies.Echo, "fcfs", 0.85),
    "Echo, told 0.8": (policies.Echo, "fcfs", 0.8),
}
"""The scheduler class, vLLM's policy, and how much of their targets online requests tell it."""
STRICTER = tuple(name for name, (*_, told) in CONTENDERS.items() if 0.0 < told < 1.0)
"""Told less than the targets by which they are judged, to keep as many of these as ours."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An online request."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class _Seen:
    arrived_s: float
    prompt_tokens: int
    first_s: float = 0.0
    last_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """The engine that is played."""

    step_time: StepTimeModel
    blocks: int
    max_num_seqs: int = 256
    budget_tokens: int = 2048
    max_model_len: int = 32_768


class Run:
    """One contender on one load."""

    def __init__(
        self,
        contender: str,
        machine: Machine,
        arrivals: list[Arrival],
        lines: Iterator[Line],
    ) -> None:
        cls, policy, told = CONTENDERS[contender]
        config = engine_config(
            total_blocks=machine.blocks,
            max_num_seqs=machine.max_num_seqs,
            max_num_scheduled_tokens=machine.budget_tokens,
            max_model_len=machine.max_model_len,
            policy=policy,
        )
        self._loop = EngineLoop(config, cls)
        self._scheduler: Any = self._loop.scheduler
        self._machine, self._arrivals = machine, arrivals
        self._lines = None if contender == ALONE else lines
        self._targets = {name: told * ms for name, ms in TARGETS.items()} if told else None
        self._now_s = 0.0
        planner = getattr(self._scheduler, "planner", None)
        if planner is not None:
            planner.now = lambda: Instant(self._now_s, self._now_s)
        self._online: dict[str, _Seen] = {}
        self._offline: dict[str, _Seen] = {}
        self._queued = self._hits = self._looked_up = self._preempted = 0
        self._done = {"offline_tokens": 0, "offline_requests": 0, "steps": 0}
        self.course: list[Look] = []
        self._looked = (0.0, 0, 0)

    def play(self, until_s: float) -> dict[str, Any]:
        """Serve until `until_s`; what happened before a tenth of it does not count."""
        coming = iter(self._arrivals)
        arrival = next(coming, None)
        while self._now_s < until_s:
            while arrival is not None and arrival.at_s <= self._now_s:
                self._arrive(arrival)
                arrival = next(coming, None)
            self._fill()
            self._look()
            if not self._step():
                if arrival is None:
                    break
                self._now_s = max(self._now_s, arrival.at_s)
        self._loop.close()
        return self._result(until_s)

    def _arrive(self, arrival: Arrival) -> None:
        name = f"online {len(self._online)}"
        self._online[name] = _Seen(arrival.at_s, arrival.prompt_tokens)
        self._loop.add(
            name,
            arrival.prompt_tokens,
            arrival.output_tokens,
            arrival_s=arrival.at_s,
            extra_args=self._targets,
        )

    def _fill(self) -> None:
        """Keep the window of waiting offline requests full."""
        if self._lines is None:
            return
        while self._queued < WINDOW:
            line, name = next(self._lines), f"offline {len(self._offline)}"
            self._offline[name] = _Seen(self._now_s, len(line.prompt))
            self._loop.add(
                name,
                line.prompt,
                line.output_tokens,
                priority=_LAST,
                arrival_s=self._now_s,
                extra_args={"class": "offline"},
            )
            self._queued += 1

    def _step(self) -> bool:
        """One step; false where there was nothing to do."""
        scheduler = self._scheduler
        if not scheduler.has_requests():
            return False
        output = scheduler.schedule()
        self._preempted += len(output.preempted_req_ids or ())
        tokens = output.num_scheduled_tokens
        shape = batch_shape(tokens, scheduler.requests)
        for new in output.scheduled_new_reqs:
            if new.req_id in self._offline:
                self._queued -= 1
                self._looked_up += self._offline[new.req_id].prompt_tokens
                self._hits += new.num_computed_tokens
        if shape.tokens:
            self._scheduled(output, shape)
            self._now_s += HOST_S + self._machine.step_time.step_s(shape)
            self._done["steps"] += 1
        ids = list(tokens)
        sampled = [[] if scheduler.requests[i].is_prefill_chunk else [100] for i in ids]
        for name, new_tokens in zip(ids, sampled, strict=True):
            self._sampled(name, len(new_tokens))
        places = {name: place for place, name in enumerate(ids)}
        scheduler.update_from_output(output, ModelRunnerOutput(ids, places, sampled))
        for name in set(ids) - scheduler.requests.keys():
            if seen := self._offline.get(name):
                self._done["offline_requests"] += 1
                self._done["offline_tokens"] += seen.prompt_tokens + seen.tokens
        return bool(tokens) or bool(output.finished_req_ids)

    def _look(self) -> None:
        """Note how the engine stands, once in a while."""
        due_s, hits, looked_up = self._looked
        planner = getattr(self._scheduler, "planner", None)
        if planner is None or self._now_s < due_s:
            return
        self._looked = (self._now_s + _LOOK_EVERY_S, self._hits, self._looked_up)
        running = self._scheduler.running
        offline = [each for each in running if planner.is_offline(each)]
        online = [each for each in running if not planner.is_offline(each)]
        free = planner.free_blocks
        left_online = free._segments[ONLINE].num_free_blocks
        kept = free.num_free_blocks - free.free_before(UNNEEDED)
        self.course.append(
            Look(
                round(self._now_s, 2),
                len(online),
                len(offline),
                self._hits - hits,
                self._looked_up - looked_up,
                *self._held(online, offline),
                left_online,
                kept - left_online,
                round(planner._reserve.usual_blocks, 1),
            )
        )

    def _held(self, online: list[Any], offline: list[Any]) -> tuple[int, int]:
        """KV blocks of the running requests of both classes; what both share is online."""
        blocks = self._scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks

        def held(requests: list[Any]) -> set[int]:
            return {block.block_id for each in requests for block in blocks[each.request_id]}

        ours = held(online)
        return len(ours), len(held(offline) - ours)

    def _scheduled(self, output: Any, shape: BatchShape) -> None:
        """A step begins; for who watches."""

    def _sampled(self, name: str, tokens: int) -> None:
        if not tokens:
            return
        seen = self._online.get(name) or self._offline[name]
        seen.tokens += tokens
        if not seen.first_s:
            seen.first_s = self._now_s
        else:
            seen.gaps_s.append(self._now_s - seen.last_s)
        seen.last_s = self._now_s

    def _result(self, until_s: float) -> dict[str, Any]:
        counted = [each for each in self._online.values() if each.arrived_s >= until_s / 10]
        ttfts = [each.first_s - each.arrived_s for each in counted if each.first_s]
        gaps = [gap for each in counted for gap in each.gaps_s]
        tpots = [sum(each.gaps_s) / len(each.gaps_s) for each in counted if each.gaps_s]
        met = sum(_met(each) for each in counted)
        return {
            "online": len(counted),
            "met": met / len(counted),
            **{f"ttft_p{level}_s": percentile(ttfts, level) for level in (50, 99)},
            **{f"tpot_p{level}_s": percentile(tpots, level) for level in (50, 99)},
            "gap_p99_s": percentile(gaps, 99),
            "offline_tokens_per_s": self._done["offline_tokens"] / self._now_s,
            "hit_ratio": self._hits / self._looked_up if self._looked_up else 0.0,
            "offline_per_s": self._done["offline_requests"] / self._now_s,
            "preempted": self._preempted,
            "steps": self._done["steps"],
        }


def _met(seen: _Seen) -> bool:
    """Whether an online request met both targets; one that has not begun has not."""
    ttft_s = seen.first_s - seen.arrived_s if seen.first_s else float("inf")
    tpot_s = sum(seen.gaps_s) / len(seen.gaps_s) if seen.gaps_s else 0.0
    return 1e3 * ttft_s <= TARGETS["slo_ttft_ms"] and 1e3 * tpot_s <= TARGETS["slo_tpot_ms"]
