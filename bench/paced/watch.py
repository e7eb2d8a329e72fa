"""What an engine's snapshots tell of a run: how late its steps were, and whom it preempted."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from foretell.latency.linear import StepTimeModel
from foretell.model import EngineSnapshot


@dataclass(frozen=True, slots=True)
class Watched:
    """Of one engine in one run."""

    steps: int
    """Number of steps that another followed at once."""
    lateness: float
    """How much longer these took than they should, all together; 0.1 is 10%."""
    preemptions: int
    """Of all requests; one in the very last step of a request would be missed."""


def watched(
    snapshots: Sequence[EngineSnapshot], step_time: StepTimeModel, slowdown: float, since_s: float
) -> Watched:
    """Of the steps that began after `since_s`.

    From the start of a step to that of the next, so that what is between them counts too.
    """
    steps, due_s, took_s = 0, 0.0, 0.0
    preemptions: dict[str, int] = {}
    for snapshot in snapshots:
        if snapshot.taken_unix_s < since_s:
            continue
        for request in (*snapshot.running, *snapshot.waiting):
            preemptions[request.foretell_id] = request.preemptions
        if len(snapshot.steps_in_flight) > 1:
            continue
        # An engine that was idle in between told its last step in a snapshot without a new one.
        for step, following in pairwise([*snapshot.completed_steps, *snapshot.steps_in_flight]):
            if step.started_unix_s >= since_s:
                steps += 1
                due_s += slowdown * step_time.step_s(step.shape)
                took_s += following.started_unix_s - step.started_unix_s
    lateness = took_s / due_s - 1.0 if due_s else 0.0
    return Watched(steps, lateness, sum(preemptions.values()))
