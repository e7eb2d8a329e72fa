"""Records what vLLM's real scheduler does with a scenario of the replay format."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from time import monotonic
from typing import Any

from foretell.engine.content import Segment
from foretell.engine.scenario import ReplayRequest, Scenario
from foretell.model import EngineSnapshot
from foretell.services.backend.vllm import compat
from foretell.services.backend.vllm.snapshot import SnapshotRecorder
from foretell.tools.verify.engine_loop import EOS_TOKEN, Drafting, Iteration, VerifiedLoop
from foretell.v1 import snapshot_pb2
from foretell.wire import snapshot_from_proto


class SegmentTokens:
    """Token ids for segments: the same for the same (segment, index), else different."""

    def __init__(self) -> None:
        numbers = count(EOS_TOKEN + 1)
        self._segments: dict[str, dict[int, int]] = defaultdict(
            lambda: defaultdict(lambda: next(numbers))
        )

    def token(self, segment: str, index: int) -> int:
        return self._segments[segment][index]

    def of(self, prompt: tuple[Segment, ...]) -> list[int]:
        return [self.token(name, j) for name, tokens in prompt for j in range(tokens)]


class ReplayLoop(VerifiedLoop):
    """An engine loop with the token ids of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        config = scenario.config
        super().__init__(config.engine_config())
        self._scenario = scenario
        self.drafting = Drafting(self.config, config.drafted_ratio, config.accepted_ratio)
        self._tokens = SegmentTokens()

    def add_request(self, request: ReplayRequest, arrival: int) -> None:
        self.add(
            request.id,
            self._tokens.of(request.prompt),
            request.max_tokens,
            eos_after=request.stop_after or 0,
            priority=request.priority,
            arrival_s=float(arrival),
            adapter=request.adapter,
            awaits_grammar=request.grammar_step > request.arrival_step,
            inputs=list(self._scenario.inputs_of(request)),
        )

    def _token(self, request_id: str, index: int) -> int:
        if index + 1 == self._eos_after[request_id]:
            return EOS_TOKEN
        return self._tokens.token(f"out:{request_id}", index)


class SnapshotLoop(ReplayLoop):
    """The same, with the snapshot that the plugin publishes after each `schedule()`."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.snapshot: EngineSnapshot | None = None
        self._plugin = SnapshotRecorder(
            self.scheduler,
            compat.engine_config(self.scheduler),
            compat.waiting_reader(self.scheduler),
            self._take,
            instance_id="recorded",
            engine_run_id="1",
        )

    def add_request(self, request: ReplayRequest, arrival: int) -> None:
        self._plugin.must_read = True  # as the plugin's `add_request()` does
        super().add_request(request, arrival)

    def _schedule(self) -> dict[str, Any]:
        started_s = monotonic()
        facts = super()._schedule()
        self._plugin.scheduled(self._queue[-1].output, started_s)
        return facts

    def _update(self, batch: Any) -> list[str]:
        self._plugin.updating((batch.output, 0, self.sampled(batch), monotonic()))
        finished = super()._update(batch)
        self._plugin.updated()
        return finished

    def _take(self, base: bytes, rest: bytes, once: bytes) -> None:
        decoded = snapshot_from_proto(snapshot_pb2.EngineSnapshot.FromString(base + rest + once))
        if decoded.steps_in_flight:
            self.snapshot = decoded


def record(
    scenario: Scenario,
    *,
    snapshots: dict[int, EngineSnapshot] | None = None,
    limit: int = 20_000,
) -> Iterator[dict[str, Any]]:
    """The records of the replay format; fails after `limit` iterations.

    `snapshots` gets what the plugin would have published after `schedule()`, by iteration.
    """
    loop = ReplayLoop(scenario) if snapshots is None else SnapshotLoop(scenario)
    todo = sorted(scenario.requests, key=lambda r: r.arrival_step)
    step = added = 0
    for _ in range(limit):
        if not loop.busy:
            if added == len(todo):
                loop.close()
                return
            step = max(step, todo[added].arrival_step)
        while added < len(todo) and todo[added].arrival_step <= step:
            loop.add_request(todo[added], added)
            added += 1
        for request in scenario.requests:
            if step == request.grammar_step > request.arrival_step:
                loop.compile_grammar(request.id)
        aborted = [r.id for r in scenario.requests if r.abort_step == step and loop.abort(r.id)]
        yield {"step": step} | _in_format(loop.step(), aborted)
        if snapshots is not None and isinstance(loop, SnapshotLoop) and loop.snapshot:
            snapshots[step], loop.snapshot = loop.snapshot, None
        step += 1
    raise AssertionError("the engine does not become idle")


def _in_format(did: Iteration, aborted: list[str]) -> dict[str, Any]:
    outcome = {"finished": did.finished, "aborted": aborted, "free": did.free_blocks}
    if did.scheduled is None:
        return {"sched": None} | outcome
    admission = {"new": did.new, "resumed": did.resumed, "cached": did.cached}
    return {"sched": did.scheduled, **admission, "preempted": did.preempted, **outcome}
