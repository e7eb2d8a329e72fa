"""vLLM's real scheduler in virtual time, with online and offline requests; needs vLLM.

No model runs: a step takes as long as a profile says, and sampled tokens are made up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.outputs import ModelRunnerOutput

from bench.offline import cosched_policies as policies
from bench.offline.documents import Line
from foretell.latency.linear import StepTimeModel
from foretell.services.backend.vllm.shape import batch_shape
from foretell.services.backend.vllm.steps import Instant
from foretell.tools.intervals import percentile
from foretell.tools.verify.engine_loop import VerifiedLoop
from foretell.tools.verify.installed import engine_config
from foretell.workload import Arrival

WINDOW = 200
"""Offline requests that wait in the engine at any time."""
TARGETS = {"slo_ttft_ms": 1000.0, "slo_tpot_ms": 50.0}
_LAST = 2**31 - 1
HOST_S = 0.001
"""Seconds of a step outside the model."""

ALONE = "online alone"
CONTENDERS: dict[str, tuple[type[Any] | None, str, float]] = {
    ALONE: (None, "fcfs", 0.0),
    "BS": (None, "priority", 0.0),
    "BS+E": (policies.EchoInOrder, "fcfs", 1.0),
    "BS+E+S": (policies.EchoUnreserved, "fcfs", 1.0),
    "BS+E+S+R": (policies.Echo, "fcfs", 1.0),
    "ours, with targets": (policies.Ours, "fcfs", 1.0),
    "ours, as if alone": (policies.Ours, "fcfs", 0.0),
}
"""The scheduler class (None: stock), vLLM's policy, and the factor on the targets that online
requests state (0: they state none)."""


@dataclass(slots=True)
class _Seen:
    arrived_s: float
    prompt_tokens: int
    first_s: float = 0.0
    last_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Machine:
    """The simulated engine."""

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
        cls, policy, factor = CONTENDERS[contender]
        config = engine_config(
            total_blocks=machine.blocks,
            max_num_seqs=machine.max_num_seqs,
            max_num_scheduled_tokens=machine.budget_tokens,
            max_model_len=machine.max_model_len,
            policy=policy,
        )
        self._loop = VerifiedLoop(config, cls)
        self._scheduler: Any = self._loop.scheduler
        self._machine, self._arrivals = machine, arrivals
        self._lines = None if contender == ALONE else lines
        self._targets = {name: factor * ms for name, ms in TARGETS.items()} if factor else None
        self._now_s = 0.0
        planner = getattr(self._scheduler, "planner", None)
        if planner is not None:
            planner.now = lambda: Instant(self._now_s, self._now_s)
        self._online: dict[str, _Seen] = {}
        self._offline: dict[str, _Seen] = {}
        self._queued = self._hits = self._looked_up = self._answered = 0

    def play(self, until_s: float) -> dict[str, Any]:
        """Serve until `until_s`; online requests that arrived in the first tenth do not count."""
        coming = iter(self._arrivals)
        arrival = next(coming, None)
        while self._now_s < until_s:
            while arrival is not None and arrival.t_s <= self._now_s:
                self._arrive(arrival)
                arrival = next(coming, None)
            self._fill()
            if not self._step():
                if arrival is None:
                    break
                self._now_s = max(self._now_s, arrival.t_s)
        self._loop.close()
        return self._result(until_s)

    def _arrive(self, arrival: Arrival) -> None:
        name = f"online {len(self._online)}"
        self._online[name] = _Seen(arrival.t_s, arrival.prompt_tokens)
        self._loop.add(
            name,
            arrival.prompt_tokens,
            arrival.output_tokens,
            arrival_s=arrival.t_s,
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
        """Run one step; false if there was nothing to do."""
        scheduler = self._scheduler
        if not scheduler.has_requests():
            return False
        output = scheduler.schedule()
        tokens = output.num_scheduled_tokens
        shape = batch_shape(tokens, scheduler.requests)
        for new in output.scheduled_new_reqs:
            if new.req_id in self._offline:
                self._queued -= 1
                self._looked_up += self._offline[new.req_id].prompt_tokens
                self._hits += new.num_computed_tokens
        if shape.tokens:
            self._now_s += HOST_S + self._machine.step_time.step_s(shape)
        ids = list(tokens)
        sampled = [[] if scheduler.requests[i].is_prefill_chunk else [100] for i in ids]
        for name, new_tokens in zip(ids, sampled, strict=True):
            self._sampled(name, len(new_tokens))
        places = {name: place for place, name in enumerate(ids)}
        scheduler.update_from_output(output, ModelRunnerOutput(ids, places, sampled))
        ended = set(ids) - scheduler.requests.keys()
        self._answered += len(ended & self._offline.keys())
        return bool(tokens) or bool(output.finished_req_ids)

    def _sampled(self, name: str, tokens: int) -> None:
        if not tokens:
            return
        seen = self._online.get(name) or self._offline[name]
        if not seen.first_s:
            seen.first_s = self._now_s
        else:
            seen.gaps_s.append(self._now_s - seen.last_s)
        seen.last_s = self._now_s

    def _result(self, until_s: float) -> dict[str, Any]:
        counted = [each for each in self._online.values() if each.arrived_s >= until_s / 10]
        ttfts = [each.first_s - each.arrived_s for each in counted if each.first_s]
        tpots = [sum(each.gaps_s) / len(each.gaps_s) for each in counted if each.gaps_s]
        met = sum(_met(each) for each in counted)
        return {
            "online": len(counted),
            "met": met / len(counted),
            **{f"ttft_p{level}_s": percentile(ttfts, level) for level in (50, 99)},
            **{f"tpot_p{level}_s": percentile(tpots, level) for level in (50, 99)},
            "hit_ratio": self._hits / self._looked_up if self._looked_up else 0.0,
            "offline_per_s": self._answered / self._now_s,
        }


def _met(seen: _Seen) -> bool:
    """Whether an online request met both targets; one that has not begun has not."""
    ttft_s = seen.first_s - seen.arrived_s if seen.first_s else float("inf")
    tpot_s = sum(seen.gaps_s) / len(seen.gaps_s) if seen.gaps_s else 0.0
    return 1e3 * ttft_s <= TARGETS["slo_ttft_ms"] and 1e3 * tpot_s <= TARGETS["slo_tpot_ms"]
