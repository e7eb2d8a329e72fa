"""The loop of an engine core: schedule a step, let it run, apply its output.

It is the loop of `EngineCore.step`, or with async scheduling of `step_with_batch_queue`
(vllm/v1/engine/core.py, 0.32), on a device that runs one step after the other: step k + 1 is
scheduled when the output of k - 1 is applied, and begins when k ends. Whoever drives an engine
calls `schedule_next` and `land` and keeps the time: forecasts and the simulator in compiled code,
`engine.twin` for the replay of scenarios and for the emulated engine.
"""

from typing import NamedTuple

import numpy as np

from foretell.kernel.cosched import schedule_beside
from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import Batch, Record, State
from foretell.kernel.output import complete
from foretell.kernel.scheduling import schedule
from foretell.kernel.step_time import StepTime, step_s

CLOCK = np.dtype(
    [
        ("now_s", np.float64),
        ("first_end_s", np.float64),  # when the older of the steps in flight ends
        ("last_end_s", np.float64),  # when the younger one ends
        ("in_flight", np.int64),  # steps in flight
        ("oldest", np.int64),  # which of the two batches the older one is
        ("next_arrival", np.int64),
        ("preemptions", np.int64),
        ("iterations", np.int64),  # steps completed
        ("until_first_token", np.int64),  # a rollout ends with the first token of any watched one
    ]
)


class Loop(NamedTuple):
    """An engine and its steps in flight: at most `state.engine.depth`, which is 1 or 2."""

    state: State
    batches: tuple[Batch, Batch]
    """The steps in flight take turns in these two."""
    clock: Record
    """A record of `CLOCK`."""


@inlined
def newest(loop: Loop) -> int:
    """Which of the two batches the step behind those in flight is scheduled into."""
    return int((loop.clock.oldest + loop.clock.in_flight) % 2)


@inlined
def schedule_next(loop: Loop, model: StepTime) -> bool:
    """Schedule a step behind those in flight; False where none may be, or nothing can change.

    A step that only preempts holds no tokens. The step is in flight when `launch` says so. Where
    offline requests are told apart they get what `model` says is left of it.
    """
    engine, clock = loop.state.engine, loop.clock
    if clock.in_flight >= engine.depth or engine.running + engine.waiting == 0:
        return False
    batch = loop.batches[newest(loop)]
    if engine.co_schedules:
        return schedule_beside(loop.state, batch, model, clock.now_s)
    return schedule(loop.state, batch)


@inlined
def batch_s(model: StepTime, counts: Record) -> float:
    """Seconds of a step with the sums `counts`, a record of `layout.BATCH`.

    A step without tokens, which preempted somebody, runs no model and takes no time.
    """
    if counts.prefill_seqs + counts.decode_seqs == 0:
        return 0.0
    return step_s(
        model,
        counts.prefill_seqs,
        counts.prefill_tokens,
        counts.prefill_pairs,
        counts.decode_seqs,
        counts.decode_pairs,
        counts.draft_tokens,
    )


@inlined
def launch(loop: Loop, seconds: float) -> None:
    """The step just scheduled is in flight: it begins when the device is free, for `seconds`."""
    clock = loop.clock
    clock.preemptions += loop.batches[newest(loop)].counts.preempted
    begin_s = clock.now_s if clock.in_flight == 0 else max(clock.now_s, clock.last_end_s)
    clock.last_end_s = begin_s + seconds
    if clock.in_flight == 0:
        clock.first_end_s = clock.last_end_s
    clock.in_flight += 1


@inlined
def end_oldest(loop: Loop) -> None:
    """The clock moves to the end of the oldest step in flight, which is in flight no more."""
    clock = loop.clock
    clock.now_s = max(clock.now_s, clock.first_end_s)
    clock.oldest = 1 - clock.oldest
    clock.in_flight -= 1
    clock.first_end_s = clock.last_end_s
    clock.iterations += 1


@compiled
def land(loop: Loop) -> None:
    """The oldest step in flight ends, and its output is applied."""
    batch = loop.batches[loop.clock.oldest]
    end_oldest(loop)
    complete(loop.state, batch, loop.clock.now_s)
