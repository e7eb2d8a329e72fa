"""What the compiled call of one prediction spends its time on: the same call with less to do."""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from foretell.engine.forecast import Call
from foretell.kernel.forecasts import Answers
from foretell.kernel.jit import compiled
from foretell.kernel.pictures import Pictures
from foretell.kernel.start import Scratch
from foretell.kernel.step_time import StepTime
from foretell.latency.linear import LinearStepTime
from tools.harness.cases import STATES, Size, make_case
from tools.harness.kernel import prepare, profile_step_time

_ROUNDS = 40
_LINEAR = LinearStepTime((2e-2, 1e-4, 0.0, 1e-4, 1e-4, 1e-8))
"""A step time without tables, about as fast as the profile."""


@compiled
def _take(
    pictures: Pictures,
    scratch: Scratch,
    model: StepTime,
    questions: NDArray[np.void],
    arrivals: NDArray[np.void],
    now_s: float,
    every_step: bool,
    seed: int,
    answers: Answers,
) -> None:
    """The arguments of `kernel.forecasts.forecast`, and nothing done with them."""


def _arguments(call: Call) -> None:
    _take(*call)


def time_parts(size: Size) -> dict[str, float]:
    """Microseconds of CPU of each variant: the least of each state's, averaged over the states.

    The variants take turns, so that a machine that slows down slows all of them.
    """
    step_time = profile_step_time()
    cases = [make_case(size, state, async_scheduling=True) for state in range(STATES)]
    served = [prepare(case, step_time) for case in cases]
    variants: dict[str, tuple[Callable[[Call], None], list[Call]]] = {
        "handing the arguments over": (_arguments, served),
        "one rollout": (Call.run, [prepare(case, step_time, samples=1) for case in cases]),
        "as schedulers ask": (Call.run, served),
        "the same, step times without tables": (
            Call.run,
            [prepare(case, _LINEAR) for case in cases],
        ),
        "the same, with four rollouts": (
            Call.run,
            [prepare(case, step_time, samples=4) for case in cases],
        ),
        "the same, and requests that are expected to come later": (
            Call.run,
            [prepare(case, step_time, expect_arrivals=True) for case in cases],
        ),
    }
    least = {name: [float("inf")] * STATES for name in variants}
    for _ in range(_ROUNDS):
        for name, (call, states) in variants.items():
            for i, state in enumerate(states):
                started = time.thread_time_ns()
                call(state)
                least[name][i] = min(least[name][i], (time.thread_time_ns() - started) * 1e-3)
    return {name: round(sum(times) / STATES, 1) for name, times in least.items()}
