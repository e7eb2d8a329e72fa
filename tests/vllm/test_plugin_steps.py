"""How long a step took, counted from the engine's call of the scheduler."""

import pytest

from foretell.model import BatchShape, Step
from foretell.services.backend.vllm.steps import Instant, StepTracker

pytestmark = pytest.mark.vllm

SHAPE = BatchShape(decode_seqs=1, decode_pairs=10)
EMPTY = BatchShape()
UNIX_S = 1_700_000_000.0


def at(seconds: float) -> Instant:
    return Instant(seconds, UNIX_S + seconds)


def durations(steps: list[Step]) -> list[tuple[int, float, float]]:
    return [(s.step, s.started_unix_s - UNIX_S, s.duration_s) for s in steps]


def test_a_busy_engine_is_timed_from_update_to_update() -> None:
    tracker, first, second = StepTracker(), object(), object()
    tracker.scheduled(first, SHAPE, at(10))
    tracker.updating(first, at(12))
    tracker.updated(work_left=True)
    tracker.scheduled(second, SHAPE, at(13))
    assert durations(tracker.in_flight) == [(1, 12, 0)]
    tracker.updating(second, at(16))
    assert durations(tracker.take_completed()) == [(0, 10, 2), (1, 12, 4)]
    assert tracker.take_completed() == []


def test_a_step_after_a_pause_is_timed_from_its_own_schedule() -> None:
    tracker, first, second = StepTracker(), object(), object()
    tracker.scheduled(first, SHAPE, at(0))
    tracker.updating(first, at(1))
    tracker.updated(work_left=False)
    tracker.scheduled(object(), EMPTY, at(1.5))
    tracker.scheduled(second, SHAPE, at(100))
    tracker.updating(second, at(103))
    assert durations(tracker.take_completed())[-1] == (1, 100, 3)


def test_an_engine_that_cannot_schedule_is_not_busy() -> None:
    tracker, first, second = StepTracker(), object(), object()
    tracker.scheduled(first, SHAPE, at(0))
    tracker.updating(first, at(1))
    tracker.updated(work_left=True)
    tracker.scheduled(object(), EMPTY, at(2))  # all remaining requests are blocked
    tracker.scheduled(second, SHAPE, at(50))
    tracker.updating(second, at(51))
    assert durations(tracker.take_completed())[-1] == (1, 50, 1)


def test_with_async_scheduling_a_step_starts_when_its_predecessor_ends() -> None:
    tracker, first, second, third = StepTracker(), object(), object(), object()
    tracker.scheduled(first, SHAPE, at(0))
    tracker.scheduled(second, SHAPE, at(1))
    assert durations(tracker.in_flight) == [(0, 0, 0), (1, 1, 0)]
    tracker.updating(first, at(10))
    tracker.updated(work_left=False)  # nothing to schedule, but a step is still in flight
    assert durations(tracker.in_flight) == [(1, 10, 0)]
    tracker.updating(second, at(17))
    tracker.updated(work_left=False)
    tracker.scheduled(third, SHAPE, at(30))
    tracker.updating(third, at(32))
    assert durations(tracker.take_completed()) == [(0, 0, 10), (1, 10, 7), (2, 30, 2)]


def test_outputs_are_matched_by_identity_and_lost_ones_dropped() -> None:
    tracker, lost, found = StepTracker(), {"n": 1}, {"n": 1}
    tracker.scheduled(lost, SHAPE, at(0))
    tracker.scheduled(found, SHAPE, at(1))
    tracker.updating({"n": 1}, at(2))  # equal, but not the same object
    assert tracker.take_completed() == []
    tracker.updating(found, at(5))
    assert [s.step for s in tracker.take_completed()] == [1]
    assert tracker.in_flight == []
