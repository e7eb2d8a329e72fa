"""What engines' snapshots show of a run: the lateness of steps, preemptions, and bubbles."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

from foretell.latency.linear import StepTimeModel
from foretell.model import EngineSnapshot


@dataclass(frozen=True, slots=True)
class Watched:
    """Figures of one engine in one run."""

    steps: int
    """Number of steps that were followed at once by another."""
    lateness: float
    """By how much these took longer than due, in total; 0.1 is 10%."""
    preemptions: int
    """Preemptions of all requests; one in a request's very last step would be missed."""


def watched(
    snapshots: Sequence[EngineSnapshot], step_time: StepTimeModel, slowdown: float, since_s: float
) -> Watched:
    """The figures of the steps that began after `since_s`.

    A step lasts until the start of the next, so that the time between them counts too.
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
        # Pairs span no idle time: the last step before it is in a snapshot without a new step.
        for step, following in pairwise([*snapshot.completed_steps, *snapshot.steps_in_flight]):
            if step.started_unix_s >= since_s:
                steps += 1
                due_s += slowdown * step_time.step_s(step.shape)
                took_s += following.started_unix_s - step.started_unix_s
    lateness = took_s / due_s - 1.0 if due_s else 0.0
    return Watched(steps, lateness, sum(preemptions.values()))


def bubbles(engines: Sequence[Sequence[EngineSnapshot]], since_s: float) -> float:
    """Time in which an engine has no work while a request waits in any of them, as a ratio of the
    time of all steps.

    A request waits if a step has left it waiting, so that the way to an engine does not count.
    """
    seen = sorted(
        (
            (max(snapshot.taken_unix_s, since_s), index, snapshot)
            for index, snapshots in enumerate(engines)
            for snapshot in snapshots
        ),
        key=itemgetter(0),
    )
    idle, waiting = [True] * len(engines), [False] * len(engines)
    bubbles_s = busy_s = 0.0
    for (at_s, index, snapshot), (until_s, *_) in pairwise(seen):
        idle[index] = not (snapshot.running or snapshot.waiting)
        waiting[index] = bool(snapshot.waiting)
        busy_s += (until_s - at_s) * (len(engines) - sum(idle))
        if any(waiting):
            bubbles_s += (until_s - at_s) * sum(idle)
    return bubbles_s / busy_s if busy_s else 0.0
