"""What `bench.paced.watch` makes of snapshots."""

import pytest

from bench.paced.watch import Watch
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape, Step
from foretell.v1 import snapshot_pb2
from foretell.wire import steps_to_proto

STEP_TIME = LinearStepTime((0.01, 0.0, 0.0, 0.0, 0.0, 0.0))


def snapshot(*steps: float, completed: int, preemptions: int = 0) -> snapshot_pb2.EngineSnapshot:
    """Steps that began at these times, the first `completed` of them over."""
    made = [Step(n, start_s, 0.0, BatchShape(decode_seqs=1)) for n, start_s in enumerate(steps)]
    return snapshot_pb2.EngineSnapshot(
        running=snapshot_pb2.RequestColumns(foretell_id=["a"], preemptions=[preemptions]),
        completed_steps=steps_to_proto(made[:completed]),
        steps_in_flight=steps_to_proto(made[completed:]),
    )


def test_a_step_is_late_by_what_passes_until_the_next_begins() -> None:
    watch = Watch(STEP_TIME, speedup=0.5)
    due_s = STEP_TIME.step_s(BatchShape(decode_seqs=1)) / 0.5
    assert watch.lateness == 0.0
    watch.hear(snapshot(5.0, 5.0 + 1.25 * due_s, completed=1))
    watch.hear(snapshot(9.0, completed=1))  # then it was idle
    watch.hear(snapshot(99.0, completed=0))
    assert watch.steps == 1
    together = (99.0, 99.0 + 1.25 * due_s, 99.0 + 2.5 * due_s)
    watch.hear(snapshot(*together, completed=2))
    assert watch.steps == 3
    assert watch.lateness == pytest.approx(0.25)


def test_preemptions_are_counted_once() -> None:
    watch = Watch(STEP_TIME, speedup=1.0)
    for count in (0, 1, 1, 2):
        watch.hear(snapshot(1.0, completed=0, preemptions=count))
    assert watch.preemptions == 2
    watch.reset()
    assert watch.preemptions == 0
