"""Replays a scenario through the twin: one record per iteration of the engine loop.

The loop is that of `EngineCore.step`, or with async scheduling of `step_with_batch_queue`
(vllm/v1/engine/core.py, 0.32): arrivals are added, aborts applied, `schedule()` is called if there
is anything to schedule or to flush, and the oldest step's output is applied if one is due.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from foretell.engine.async_twin import AsyncTwin
from foretell.engine.content import Content
from foretell.engine.kv import BlockPool
from foretell.engine.scenario import ReplayConfig, ReplayRequest, Scenario, ScenarioError
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Batch, Twin

ASYNC_QUEUE_DEPTH = 2
"""Steps in flight with async scheduling (vLLM's `max_concurrent_batches`)."""


MAX_ITERATIONS = 200_000
"""After which a replay gives up: an engine can preempt and recompute one request forever."""


class EngineLoop:
    """A twin and the loop around it. Call `step` while it is `busy`."""

    def __init__(self, config: ReplayConfig) -> None:
        engine = config.engine_config()
        pool = BlockPool(config.block_size, engine.total_blocks)
        blocks = pool if config.enable_prefix_caching else None
        self.twin = (AsyncTwin if config.async_ else Twin)(engine, blocks=blocks)
        self._depth = ASYNC_QUEUE_DEPTH if config.async_ else 1
        self._in_flight: deque[Batch | None] = deque()
        self._to_flush = False  # vLLM schedules once more to tell its workers who has ended

    @property
    def busy(self) -> bool:
        return bool(self._in_flight) or self._wants_schedule

    @property
    def waits_in_vain(self) -> bool:
        """Nothing is under way: if `schedule()` chose nothing, it will not do so by itself."""
        return not self.twin.idle and not self._to_flush and not any(self._in_flight)

    def add(self, request: ReplayRequest, arrival: int) -> None:
        stop_after = min(request.stop_after or request.max_tokens, request.max_tokens)
        block_size = self.twin.config.block_size_tokens
        self.twin.add(
            Sequence(
                request.id,
                request.prompt_tokens,
                stop_after,
                request.max_tokens,
                arrival_s=float(arrival),
                priority=request.priority,
                content=Content(request.prompt, f"out:{request.id}", block_size),
            )
        )

    def abort(self, request_id: str) -> bool:
        """False if it is not there or has already ended."""
        aborted = self.twin.abort(request_id)
        self._to_flush |= aborted
        return aborted

    def step(self) -> dict[str, Any]:
        """One iteration; returns its record without `step` and `aborted`."""
        record: dict[str, Any] = {"sched": None}
        output_due = True
        if self._wants_schedule:
            batch = self.twin.schedule()
            self._to_flush = False
            self._in_flight.append(batch)
            record = _scheduled(batch)
            more = bool(record["sched"]) or self._wants_schedule
            output_due = len(self._in_flight) == self._depth or not more
        record["finished"] = self._apply_output() if output_due else []
        return record

    @property
    def _wants_schedule(self) -> bool:
        return self._to_flush or not self.twin.idle

    def _apply_output(self) -> list[str]:
        batch = self._in_flight.popleft()
        if batch is None:
            return []
        finished = self.twin.complete(batch).finished
        self._to_flush |= bool(finished)
        return [seq.request_id for seq in finished]


def replay(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """The records of a scenario, in the keys of the replay format.

    Raises `ScenarioError` when what is left could never run.
    """
    loop = EngineLoop(scenario.config)
    arrivals = deque(sorted(scenario.requests, key=lambda r: r.arrival_step))
    last_abort = max((r.abort_step or 0 for r in scenario.requests), default=0)
    step = added = 0
    for _ in range(MAX_ITERATIONS):
        if not loop.busy:
            if not arrivals:
                return
            step = max(step, arrivals[0].arrival_step)
        while arrivals and arrivals[0].arrival_step <= step:
            loop.add(arrivals.popleft(), added)
            added += 1
        aborted = [r.id for r in scenario.requests if r.abort_step == step and loop.abort(r.id)]
        record = loop.step()
        loop.twin.check()
        free = loop.twin.free_blocks
        yield {"step": step, **record, "aborted": aborted, "free": free}
        chose = record["sched"] or record.get("preempted")
        if loop.waits_in_vain and not chose and not arrivals and step >= last_abort:
            left = next(iter((*loop.twin.running, *loop.twin.waiting)))
            raise ScenarioError(f"requests: {left.request_id} can never go on in this engine")
        step += 1
    raise ScenarioError(f"requests: some never end; gave up after {MAX_ITERATIONS} iterations")


def _scheduled(batch: Batch | None) -> dict[str, Any]:
    if batch is None:
        batch = Batch([])
    return {
        "sched": {seq.request_id: tokens for seq, tokens in batch.scheduled},
        "new": [seq.request_id for seq in batch.admitted if not seq.preemptions],
        "resumed": [seq.request_id for seq in batch.admitted if seq.preemptions],
        "cached": {seq.request_id: seq.cached_tokens for seq in batch.admitted},
        "preempted": [seq.request_id for seq in batch.preempted],
    }
