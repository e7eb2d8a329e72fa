"""Replays a scenario through the twin: one record per iteration of the engine's loop.

An iteration adds arrivals and applies aborts before it schedules a step (`engine.loop`).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from foretell.engine.batch import StepBatch
from foretell.engine.content import Content
from foretell.engine.loop import EngineLoop
from foretell.engine.scenario import ReplayRequest, Scenario, ScenarioError
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Twin

MAX_ITERATIONS = 200_000
"""The limit of a replay: an engine can preempt and recompute one request forever."""

Arrival = tuple[int, Sequence]
"""The iteration in which a request arrives, and its sequence."""


def replay(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield the records of a scenario, with the keys of the replay format.

    Raises `ScenarioError` if the remaining requests can never run.
    """
    config = scenario.config
    twin = Twin(config.engine_config(), prefix_cache=config.enable_prefix_caching)
    twin.expect_drafts(config.drafted_ratio, config.accepted_ratio)
    return run(EngineLoop([twin]), arrivals(scenario), aborts(scenario), grammars(scenario))


def arrivals(scenario: Scenario) -> list[Arrival]:
    """Requests in the order of arrival; their place in it is also their arrival time."""
    ordered = sorted(scenario.requests, key=lambda r: r.arrival_step)
    return [(r.arrival_step, _sequence(scenario, r, i)) for i, r in enumerate(ordered)]


def aborts(scenario: Scenario) -> dict[int, list[str]]:
    """The ids that clients abort, by iteration."""
    result: dict[int, list[str]] = {}
    for request in scenario.requests:
        if request.abort_step is not None:
            result.setdefault(request.abort_step, []).append(request.id)
    return result


def grammars(scenario: Scenario) -> dict[int, list[str]]:
    """The ids of requests whose grammars are compiled, by iteration."""
    result: dict[int, list[str]] = {}
    for request in scenario.requests:
        if request.grammar_step > request.arrival_step:
            result.setdefault(request.grammar_step, []).append(request.id)
    return result


def run(
    loop: EngineLoop,
    arriving: Iterable[Arrival],
    aborting: Mapping[int, list[str]],
    compiled: Mapping[int, list[str]],
    step: int = 0,
) -> Iterator[dict[str, Any]]:
    """Run the `loop` of one twin from `step` until it is idle and no request is still to arrive.

    Raises `ScenarioError` if the remaining requests can never run.
    """
    (twin,) = loop.twins
    todo, last_event = deque(arriving), max((*aborting, *compiled), default=0)
    for _ in range(MAX_ITERATIONS):
        if not loop.busy:
            if not todo:
                return
            step = max(step, todo[0][0])
        while todo and todo[0][0] <= step:
            twin.add(todo.popleft()[1])
        for request_id in compiled.get(step, ()):
            twin.grammar_compiled(request_id)
        aborted = [request_id for request_id in aborting.get(step, ()) if loop.abort(request_id)]
        batches = loop.schedule()
        record: dict[str, Any] = {"sched": None} if batches is None else _scheduled(batches[0])
        outcomes = loop.apply_output() if loop.output_due else []
        record["finished"] = [seq.request_id for outcome in outcomes for seq in outcome.finished]
        twin.check()
        yield {"step": step, **record, "aborted": aborted, "free": twin.free_blocks}
        if loop.waits_in_vain and not todo and step >= last_event:
            left = next(iter((*twin.running, *twin.waiting)))
            raise ScenarioError(f"requests: {left.request_id} can never go on in this engine")
        step += 1
    raise ScenarioError(f"requests: some never end; gave up after {MAX_ITERATIONS} iterations")


def _sequence(scenario: Scenario, request: ReplayRequest, arrival: int) -> Sequence:
    return Sequence(
        request.id,
        request.prompt_tokens,
        stop_after=min(request.stop_after or request.max_tokens, request.max_tokens),
        max_tokens=request.max_tokens,
        arrival_s=float(arrival),
        priority=request.priority,
        adapter=request.adapter,
        awaits_grammar=request.grammar_step > request.arrival_step,
        content=Content(
            request.prompt,
            f"out:{request.id}",
            scenario.config.block_size,
            f"adapter {request.adapter}" if request.adapter else "",
            scenario.config.num_hash_lookahead_tokens,
        ),
        inputs=tuple(found for _, found in scenario.inputs_of(request)),
    )


def _scheduled(batch: StepBatch | None) -> dict[str, Any]:
    if batch is None:
        return {"sched": {}, "new": [], "resumed": [], "cached": {}, "preempted": []}
    return {
        "sched": {seq.request_id: tokens for seq, tokens in batch.scheduled},
        "new": [seq.request_id for seq in batch.admitted if not seq.preemptions],
        "resumed": [seq.request_id for seq in batch.admitted if seq.preemptions],
        "cached": {seq.request_id: seq.cached_tokens for seq in batch.admitted},
        "preempted": [seq.request_id for seq in batch.preempted],
    }
