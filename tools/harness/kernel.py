"""CPU time of the compiled part of a prediction: the call that runs the twin."""

import time
from collections.abc import Callable

from foretell.config import load_profile
from foretell.engine.expected import RecentArrivals
from foretell.engine.forecast import ForecastCall, Forecaster
from foretell.engine.ledger import LOOK_AHEAD_S, MOST_EXPECTED
from foretell.engine.predictor import samples_behind
from foretell.engine.questions import EngineQuestion, ExpectedArrival, arrival
from foretell.engine.snapshots import fill_snapshot
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import StepTimeModel
from foretell.length.distribution import knots
from foretell.model import LengthEstimate, RequestSpec
from foretell.tools.harness.cases import (
    MEAN_OUTPUT_TOKENS,
    MEAN_PROMPT_TOKENS,
    STATES,
    Case,
    Size,
    arrivals_per_s,
    make_case,
)

PROFILE = "A30/Llama-2-7b-hf"
DISPATCH_DELAY_S = 0.002
_WARMUP = 2  # rounds over all states


def profile_step_time() -> StepTimeModel:
    """The step time that a predictor starts with."""
    return OnlineStepTime(load_profile(PROFILE)).current()


def prepare(
    case: Case, step_time: StepTimeModel, *, samples: int = 0, expect_arrivals: bool = False
) -> ForecastCall:
    """The call that predicts the case's new request; `samples` overrides the number of rollouts.

    By default, it is the call by which schedulers compare instances. With `expect_arrivals`, it
    includes requests expected to come later, at the rate at which the engine serves them.
    """
    snapshot = case.snapshot
    rows = [
        knots(LengthEstimate(state.predicted_output_tokens, source="model"))
        for state in (*snapshot.running, *snapshot.waiting)
    ]
    now = snapshot.taken_unix_s
    forecaster = Forecaster()
    fill_snapshot(forecaster, 0, snapshot, rows)
    question = EngineQuestion(
        engine=0,
        samples=samples or samples_behind(len(snapshot.waiting) + len(case.reserved)),
        cached_tokens=0,
        announced=[_arrival(request, now) for request in case.reserved],
        expected=_later(case, step_time) if expect_arrivals else (),
    )
    forecaster.believe(0, step_time.packed())
    return forecaster.prepare([question], _arrival(case.new, now), now)


def time_kernel(
    size: Size,
    predictions: int,
    tick: Callable[[], None],
    *,
    async_scheduling: bool = True,
    expect_arrivals: bool = False,
) -> list[float]:
    """CPU seconds of each of `predictions` calls, over `STATES` engine states in turn.

    This is the time of this thread alone, which other processes on the core do not lengthen. It is
    measured in Python, so it includes handing over the arrays.
    """
    step_time = profile_step_time()
    states = [
        prepare(
            make_case(size, state, async_scheduling=async_scheduling),
            step_time,
            expect_arrivals=expect_arrivals,
        )
        for state in range(STATES)
    ]
    took = []
    for turn in range(-_WARMUP * STATES, predictions):
        call = states[turn % STATES]
        started = time.thread_time_ns()
        call.run()
        ended = time.thread_time_ns()
        if turn >= 0:
            took.append((ended - started) * 1e-9)
            tick()
    return took


def _later(case: Case, step_time: StepTimeModel) -> list[ExpectedArrival]:
    now = case.snapshot.taken_unix_s
    rate = arrivals_per_s(Size(len(case.snapshot.running), 0), step_time)
    recent = RecentArrivals()
    for ago in range(round(LOOK_AHEAD_S * rate), 0, -1):
        recent.note(round(MEAN_PROMPT_TOKENS), MEAN_OUTPUT_TOKENS, now - ago / rate)
    expected = recent.expected(now, now + LOOK_AHEAD_S, MOST_EXPECTED)
    return [expected] if expected else []


def _arrival(request: RequestSpec, now_unix_s: float) -> ExpectedArrival:
    return arrival(request, knots(request.length), now_unix_s + DISPATCH_DELAY_S)
