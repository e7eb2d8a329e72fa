"""What `bench.paced.watch` derives from snapshots."""

from dataclasses import replace

import pytest

from bench.paced.watch import Watched, bubbles, watched
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape, EngineSnapshot, Step
from foretell.tools.harness.cases import Size, make_case

STEP_TIME = LinearStepTime((0.01, 0.0, 0.0, 0.0, 0.0, 0.0))
DUE_S = 2.0 * STEP_TIME.step_s(BatchShape(decode_seqs=1))
ANY = make_case(Size(1, 0), 1, async_scheduling=False).snapshot


def snapshot(*steps: float, completed: int, preemptions: int = 0) -> EngineSnapshot:
    """A snapshot of steps that began at these times; the first `completed` have ended."""
    made = [Step(n, start_s, 0.0, BatchShape(decode_seqs=1)) for n, start_s in enumerate(steps)]
    return replace(
        ANY,
        running=(replace(ANY.running[0], preemptions=preemptions),),
        taken_unix_s=steps[-1],
        completed_steps=tuple(made[:completed]),
        steps_in_flight=tuple(made[completed:]),
    )


def of(*snapshots: EngineSnapshot, since_s: float = 0.0) -> Watched:
    return watched(snapshots, STEP_TIME, 2.0, since_s)


def test_a_step_is_late_by_what_passes_until_the_next_begins() -> None:
    assert of() == Watched(0, 0.0, 0)
    before = snapshot(1.0, 3.0, completed=1)
    late = snapshot(5.0, 5.0 + 1.25 * DUE_S, completed=1)
    idle = snapshot(9.0, completed=1)
    again = snapshot(99.0, completed=0)
    assert of(before, late, idle, again, since_s=4.0).steps == 1
    together = snapshot(99.0, 99.0 + 1.25 * DUE_S, 99.0 + 2.5 * DUE_S, completed=2)
    found = of(before, late, idle, again, together, since_s=4.0)
    assert found.steps == 3
    assert found.lateness == pytest.approx(0.25)


def test_preemptions_are_counted_once() -> None:
    seen = [snapshot(1.0, completed=0, preemptions=count) for count in (0, 1, 1, 2)]
    assert of(*seen).preemptions == 2


def test_an_engine_without_work_is_a_bubble_while_a_request_waits_at_another() -> None:
    busy = replace(ANY, taken_unix_s=0.0)
    full = replace(ANY, waiting=ANY.running, taken_unix_s=2.0)
    empty = replace(ANY, running=(), taken_unix_s=3.0)
    emptied = replace(empty, taken_unix_s=5.0)
    assert bubbles([[busy, full, emptied], [busy, empty]], 0.0) == pytest.approx(2.0 / 8.0)
    assert bubbles([[busy, full, emptied], [busy]], 0.0) == 0.0
    assert bubbles([[], []], 0.0) == 0.0
