"""A replica's record of its placements is bounded, as are the snapshots in it."""

from types import SimpleNamespace
from typing import Any

from policy_cases import REQUEST, silent

from foretell.placement.decision import Decision
from foretell.services.scheduler.placing.attempt import Attempt, RequestTrace, Traces


def exposure(size: int) -> Any:
    return SimpleNamespace(snapshot=SimpleNamespace(requests=bytes(size), reservations=b""))


def placed(traces: Traces, name: str, *exposures: Any) -> Attempt:
    decision = Decision(REQUEST, [silent("a")], 0.0, None, silent("a"))
    inputs: Any = SimpleNamespace(exposures=exposures) if exposures else None
    instance: Any = SimpleNamespace(config=SimpleNamespace(instance_id="e"))
    attempt = Attempt("k", 1, instance, "slo", decision, inputs, REQUEST, None, 1.0, 0.1)
    traces.add(RequestTrace(name, "m"), attempt)
    return attempt


def test_the_latest_requests_are_remembered() -> None:
    traces = Traces(most=3)
    for number in range(5):
        placed(traces, f"r{number}")
    assert len(traces) == 3
    assert [traces.find(f"r{n}") is not None for n in range(5)] == [False, False, True, True, True]


def test_of_requests_with_one_id_the_latest_is_found() -> None:
    traces = Traces()
    placed(traces, "same")
    latest = placed(traces, "same")
    found = traces.find("same")
    assert found is not None
    assert found.attempts == [latest]


def test_attempts_of_one_request_are_one_trace() -> None:
    traces = Traces()
    first = placed(traces, "r")
    trace = traces.find("r")
    assert trace is not None
    traces.add(trace, first)
    assert (len(traces), len(trace.attempts)) == (1, 2)


def test_shared_snapshots_count_once_and_the_oldest_are_forgotten() -> None:
    traces, shared = Traces(most_bytes=1000), exposure(400)
    attempts = [placed(traces, f"r{n}", shared, exposure(100)) for n in range(6)]
    assert traces.snapshot_bytes == 1000
    assert all(attempt.inputs is not None for attempt in attempts)
    attempts.append(placed(traces, "r6", exposure(400), exposure(100)))
    assert traces.snapshot_bytes == 1000
    assert [attempt.inputs is None for attempt in attempts] == [True] + [False] * 6
    huge = placed(traces, "r7", exposure(5000))
    assert huge.inputs is None
    assert traces.snapshot_bytes == 0


def test_no_more_inputs_than_requests_are_remembered() -> None:
    traces = Traces(most=3)
    attempts = [placed(traces, f"r{n}", exposure(10)) for n in range(5)]
    assert [attempt.inputs is None for attempt in attempts] == [True, True, False, False, False]
