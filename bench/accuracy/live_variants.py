"""Analyses the errors of a recorded measurement: the same forecasts with more knowledge.

Each variant forecasts every measured request again from the very state that the predictor had,
with one thing replaced by what really happened.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from foretell.engine import Forecast
from foretell.engine.questions import Arrival, Question, arrival
from foretell.kernel.step_time import FLOOR, StepTime
from foretell.latency.linear import StepTimeModel
from foretell.length.distribution import knots
from foretell.tools.live.recording import Recording, Served
from foretell.tools.live.replay import State, Truth, snapshots_of, spec_of, states, truth_of
from foretell.tools.live.report import LATENCIES, Pairs, errors_of

_AFTER_S = 2.0  # behind its end, arrivals that cannot concern a request any more


@dataclass(frozen=True, slots=True)
class Variant:
    """Later arrivals, the request's own arrival, and the engine's speed in a forecast."""

    title: str
    arrivals: str = "none"
    """"none", "expected" or "true"."""
    true_speed: bool = False
    """Step times are scaled so that they add up to what they did: for e2e over the request's life,
    for TTFT until its first token."""
    true_way: bool = False
    """The request joins the queue when it did, not after the learned delay."""


VARIANTS = (
    Variant("nobody else comes"),
    Variant("nobody else comes, true way", true_way=True),
    Variant("expected arrivals", "expected"),
    Variant("true arrivals and way", "true", true_way=True),
    Variant("nobody else comes, true speed", true_speed=True),
    Variant("expected arrivals, true speed", "expected", true_speed=True),
    Variant("true arrivals and way, true speed", "true", true_speed=True, true_way=True),
)
RECORDED, TODAY = "as predicted in the run", "the same by today's code"


class Analysis:
    """The analysis of a recording. ValueError where it holds no snapshots."""

    def __init__(self, recording: Recording) -> None:
        snapshots = snapshots_of(recording)
        self.truth: Truth = truth_of(snapshots)
        whole = self.truth.whole
        self.states = [
            state
            for state in states(recording, snapshots)
            if state.served.measured and whole(state.served.request_id)
        ]
        if not self.states:
            raise ValueError("no measured request was seen in the snapshots from end to end")
        joined = self.truth.joined_unix_s
        self._arrivals = sorted(
            (r for r in recording.requests if r.request_id in joined),
            key=lambda r: joined[r.request_id],
        )
        self._arrived_s = [joined[r.request_id] for r in self._arrivals]
        steps = sorted(self.truth.steps.values(), key=lambda step: step.started_unix_s)
        self._step_times = [step.started_unix_s for step in steps]
        self._steps = steps

    def report(self) -> dict[str, Any]:
        """Errors of every variant, as JSON."""
        found = {RECORDED: self._pairs(_recorded), TODAY: self._pairs(_today)}
        for variant in VARIANTS:
            found[variant.title] = self._pairs(partial(self._forecast, variant))
        return {
            "requests": len(self.states),
            "waited": sum(bool(state.snapshot.waiting) for state in self.states),
            "errors": errors_of(found),
        }

    def _pairs(self, predict: Callable[[State], tuple[float, float]]) -> dict[str, Pairs]:
        predicted = [predict(state) for state in self.states]
        return {
            kind: Pairs([p[i] for p in predicted], [actual(state.served) for state in self.states])
            for i, (kind, actual) in enumerate(LATENCIES.items())
        }

    def _forecast(self, variant: Variant, state: State) -> tuple[float, float]:
        delay_s, answer_s = state.dispatch_delay_s, state.served.answer_delay_s
        question = Question(0, 1, 0, state.pending, delay_s=delay_s)
        if variant.arrivals == "expected" and state.expected:
            question = question._replace(expected=[state.expected])
        elif variant.arrivals == "true":
            question = question._replace(announced=self._came(state), delay_s=0.0)
        if variant.true_way:
            delay_s = self.truth.joined_unix_s[state.served.request_id] - state.now_unix_s

        newcomer = _arrival(state.served, state.now_unix_s + delay_s - question.delay_s)

        def foretold(step_time: StepTimeModel) -> Forecast:
            state.forecaster.believe(0, step_time.packed())
            (found,) = state.forecaster.forecast([question], newcomer, state.now_unix_s)
            return found

        if not variant.true_speed:
            found = foretold(state.step_time)
            return found.ttft_s + answer_s, found.e2e_s + answer_s
        request = state.served
        first = foretold(_Scaled(state.step_time, self._speed(state, request.first_unix_s)))
        last = foretold(_Scaled(state.step_time, self._speed(state, request.last_unix_s)))
        return first.ttft_s + answer_s, last.e2e_s + answer_s

    def _came(self, state: State) -> list[Arrival]:
        """The requests that joined the queue after the snapshot, at their times."""
        first = bisect_left(self._arrived_s, state.snapshot.taken_unix_s)
        last = bisect_right(self._arrived_s, state.served.last_unix_s + _AFTER_S)
        return [
            _arrival(request, at)
            for at, request in zip(
                self._arrived_s[first:last], self._arrivals[first:last], strict=True
            )
            if request.request_id != state.served.request_id
        ]

    def _speed(self, state: State, until_unix_s: float) -> float:
        """Actual over predicted duration of the steps from the one in flight on."""
        in_flight = state.snapshot.steps_in_flight
        since_s = in_flight[0].started_unix_s if in_flight else state.now_unix_s
        first = bisect_left(self._step_times, since_s)
        last = bisect_left(self._step_times, until_unix_s)
        steps = self._steps[first:last]
        believed_s = sum(state.step_time.step_s(step.shape) for step in steps)
        return sum(step.duration_s for step in steps) / believed_s if steps else 1.0


def _recorded(state: State) -> tuple[float, float]:
    request, delay_s = state.served, state.served.answer_delay_s
    return request.predicted_ttft_s + delay_s, request.predicted_e2e_s + delay_s


def _today(state: State) -> tuple[float, float]:
    prediction, delay_s = state.prediction, state.served.answer_delay_s
    return prediction.ttft_s + delay_s, prediction.e2e_s + delay_s


def _arrival(request: Served, at_unix_s: float) -> Arrival:
    spec = spec_of(request)
    return arrival(spec, knots(spec.length), at_unix_s)


@dataclass(frozen=True, slots=True)
class _Scaled(StepTimeModel):
    """A step-time model, slower by a factor."""

    model: StepTimeModel
    factor: float

    def packed(self) -> StepTime:
        packed = self.model.packed()
        coefficients = packed.coefficients * self.factor
        coefficients[FLOOR] = packed.coefficients[FLOOR]
        return packed._replace(coefficients=coefficients)
