"""Replays a scenario through the twin: one record per iteration of the engine loop.

The loop is that of `EngineCore.step`, or with async scheduling of `step_with_batch_queue`
(vllm/v1/engine/core.py, 0.32): arrivals are added, aborts applied, `schedule()` is called if there
is anything to schedule or to flush, and the oldest step's output is applied if one is due.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from foretell.engine.batch import Batch
from foretell.engine.content import Content
from foretell.engine.scenario import ReplayConfig, ReplayRequest, Scenario, ScenarioError
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Twin

MAX_ITERATIONS = 200_000
"""After which a replay gives up: an engine can preempt and recompute one request forever."""

Arrival = tuple[int, Sequence]
"""The iteration in which a request arrives, and its sequence."""


class EngineLoop:
    """A twin driven one recorded iteration at a time, by `step`, while it is `busy`."""

    def __init__(self, twin: Twin, in_flight: Iterable[Batch] = ()) -> None:
        """`in_flight` has been scheduled already, oldest first."""
        self.twin = twin
        self._in_flight: deque[Batch | None] = deque(in_flight)
        self._to_flush = False  # vLLM schedules once more to tell its workers who has ended

    @property
    def busy(self) -> bool:
        """Whether there is something to schedule, to flush or to apply."""
        return bool(self._in_flight) or self._wants_schedule

    @property
    def waits_in_vain(self) -> bool:
        """Whether nothing is under way: if `schedule()` chose nothing, it never will by itself."""
        return not self.twin.idle and not self._to_flush and not any(self._in_flight)

    def abort(self, request_id: str) -> bool:
        """Abort a request; False if it is not there or has already ended."""
        aborted = self.twin.abort(request_id)
        self._to_flush |= aborted
        return aborted

    def step(self) -> dict[str, Any]:
        """Run one iteration; returns its record without `step`, `aborted` and `free`."""
        record: dict[str, Any] = {"sched": None}
        output_due = True
        if self._wants_schedule:
            batch = self.twin.schedule()
            self._to_flush = False
            self._in_flight.append(batch)
            record = _scheduled(batch)
            more = bool(record["sched"]) or self._wants_schedule
            output_due = len(self._in_flight) == self.twin.max_steps_in_flight or not more
        record["finished"] = self.apply_output() if output_due else []
        return record

    def apply_output(self) -> list[str]:
        """Complete the oldest step in flight; returns the ids of the requests it ended."""
        batch = self._in_flight.popleft()
        if batch is None:
            return []
        finished = self.twin.complete(batch).finished
        self._to_flush |= bool(finished)
        return [seq.request_id for seq in finished]

    @property
    def _wants_schedule(self) -> bool:
        return self._to_flush or not self.twin.idle


def replay(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """The records of a scenario, in the keys of the replay format.

    Raises `ScenarioError` when what is left could never run.
    """
    return run(EngineLoop(build_twin(scenario.config)), arrivals(scenario), aborts(scenario))


def build_twin(config: ReplayConfig) -> Twin:
    """An idle engine of this configuration."""
    return Twin(config.engine_config(), prefix_cache=config.enable_prefix_caching)


def arrivals(scenario: Scenario) -> list[Arrival]:
    """Requests in the order in which they arrive; it is also their order in time."""
    ordered = sorted(scenario.requests, key=lambda r: r.arrival_step)
    block_size = scenario.config.block_size
    return [(r.arrival_step, _sequence(r, i, block_size)) for i, r in enumerate(ordered)]


def aborts(scenario: Scenario) -> dict[int, list[str]]:
    """The ids that clients abort, by iteration."""
    result: dict[int, list[str]] = {}
    for request in scenario.requests:
        if request.abort_step is not None:
            result.setdefault(request.abort_step, []).append(request.id)
    return result


def run(
    loop: EngineLoop,
    arriving: Iterable[Arrival],
    aborting: Mapping[int, list[str]],
    step: int = 0,
) -> Iterator[dict[str, Any]]:
    """Run `loop` from iteration `step` until it is idle and nobody arrives any more.

    Raises `ScenarioError` when what is left could never run.
    """
    todo, last_abort = deque(arriving), max(aborting, default=0)
    for _ in range(MAX_ITERATIONS):
        if not loop.busy:
            if not todo:
                return
            step = max(step, todo[0][0])
        while todo and todo[0][0] <= step:
            loop.twin.add(todo.popleft()[1])
        aborted = [request_id for request_id in aborting.get(step, ()) if loop.abort(request_id)]
        record = loop.step()
        loop.twin.check()
        yield {"step": step, **record, "aborted": aborted, "free": loop.twin.free_blocks}
        chose = record["sched"] or record.get("preempted")
        if loop.waits_in_vain and not chose and not todo and step >= last_abort:
            left = next(iter((*loop.twin.running, *loop.twin.waiting)))
            raise ScenarioError(f"requests: {left.request_id} can never go on in this engine")
        step += 1
    raise ScenarioError(f"requests: some never end; gave up after {MAX_ITERATIONS} iterations")


def _sequence(request: ReplayRequest, arrival: int, block_size_tokens: int) -> Sequence:
    return Sequence(
        request.id,
        request.prompt_tokens,
        stop_after=min(request.stop_after or request.max_tokens, request.max_tokens),
        max_tokens=request.max_tokens,
        arrival_s=float(arrival),
        priority=request.priority,
        content=Content(request.prompt, f"out:{request.id}", block_size_tokens),
    )


def _scheduled(batch: Batch | None) -> dict[str, Any]:
    if batch is None:
        return {"sched": {}, "new": [], "resumed": [], "cached": {}, "preempted": []}
    return {
        "sched": {seq.request_id: tokens for seq, tokens in batch.scheduled},
        "new": [seq.request_id for seq in batch.admitted if not seq.preemptions],
        "resumed": [seq.request_id for seq in batch.admitted if seq.preemptions],
        "cached": {seq.request_id: seq.cached_tokens for seq in batch.admitted},
        "preempted": [seq.request_id for seq in batch.preempted],
    }
