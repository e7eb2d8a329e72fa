"""A recording restores the predictor's state: checked with an engine in virtual time."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from virtual_engine import VirtualEngine

from foretell.engine import Sequence, SnapshotPredictor
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import LinearStepTime
from foretell.length.distribution import knots
from foretell.model import EngineConfig, Prediction, Step
from foretell.tools.live.load import MixedLengths, bursty
from foretell.tools.live.recording import Recording, Served
from foretell.tools.live.replay import snapshots_of, spec_of, states
from foretell.wire import snapshot_to_proto
from foretell.workload import Arrival
from tests.unit.asked import asked

CONFIG = EngineConfig("m", 16, 2000, 4, 256, 2048)
TRUTH = LinearStepTime((0.008, 8e-5, 0.0, 0.002, 2e-4, 5e-7))
WAY_S, CALL_S, ANSWER_S = 0.003, 0.5e-3, 0.002
START = 1e9


@dataclass
class VirtualRun:
    """An engine, its predictor and a client with one virtual clock."""

    predictor: SnapshotPredictor = field(
        default_factory=lambda: SnapshotPredictor(
            dispatch_delay_s=0.002, length_row=knots, prior_tokens=256.0
        )
    )
    model: OnlineStepTime = field(default_factory=OnlineStepTime)
    engine: VirtualEngine = field(default_factory=lambda: VirtualEngine(CONFIG, TRUTH))
    messages: list[bytes] = field(default_factory=list)
    calls: list[tuple[float, str, str]] = field(default_factory=list)
    asked: dict[str, tuple[float, Prediction, int]] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    last_s: dict[str, float] = field(default_factory=dict)

    def publish(self, now: float, done: Step | None) -> tuple[Step, ...]:
        """Publish that `done` has ended; return the steps that have begun."""
        snapshot = self.engine.snapshot(now)
        flight = tuple(replace(s, step=s.step - 1) for s in snapshot.steps_in_flight)
        completed = () if done is None else (done,)
        snapshot = replace(snapshot, completed_steps=completed, steps_in_flight=flight)
        self.messages.append(snapshot_to_proto(snapshot).SerializeToString())
        self.predictor.hear(snapshot)
        if done is not None:
            self.model.observe(done.shape, done.duration_s)
        return flight

    def answer(self, until: float, arrivals: dict[str, Arrival]) -> None:
        """Make predictions, reservations and completions due by `until`, in order."""
        self.calls.sort()
        while self.calls and self.calls[0][0] <= until:
            at, call, name = self.calls.pop(0)
            spec = spec_of(served_of(arrivals[name]))
            if call == "predict":
                found = asked(self.predictor, spec, self.model.current(), at)
                self.asked[name] = (at, found, self.model.steps)
                self.calls.append((at + 2 * CALL_S, "reserve", name))
                self.calls.sort()
            elif call == "reserve":
                self.predictor.reserve(spec, at, 10.0)
            else:
                self.predictor.complete(name)

    def serve(self, requests: list[Arrival]) -> Recording:
        arrivals = {r.request_id: r for r in requests}
        self.calls = [(START + r.t_s, "predict", r.request_id) for r in requests]
        coming = [(START + r.t_s + WAY_S, r) for r in requests]
        now, done = START - 1.0, None
        while True:
            while coming and coming[0][0] <= now:
                at, request = coming.pop(0)
                seq = Sequence(
                    request.request_id,
                    request.prompt_tokens,
                    request.output_tokens,
                    request.output_tokens,
                    arrival_s=at,
                )
                self.engine.deliver(seq)
            ends = self.engine.start_step(now)
            flight = self.publish(now, done)
            if ends is not None:
                self.answer(ends, arrivals)
                done = replace(flight[0], duration_s=ends - now)
                now = ends
                self.note_tokens(now)
                continue
            done = None
            if not coming:
                return Recording({}, [self.served(r) for r in requests], self.messages)
            now = coming[0][0]
            self.answer(now, arrivals)

    def note_tokens(self, now: float) -> None:
        outcome = self.engine.end_step()
        for seq in outcome.sampled:
            self.first_s.setdefault(seq.request_id, now)
        for seq in outcome.finished:
            self.last_s[seq.request_id] = now
            self.calls.append((now + ANSWER_S + CALL_S, "complete", seq.request_id))

    def served(self, request: Arrival) -> Served:
        at, found, steps = self.asked[request.request_id]
        return replace(
            served_of(request),
            asked_unix_s=at - CALL_S,
            decided_unix_s=at + CALL_S,
            first_unix_s=self.first_s[request.request_id] + ANSWER_S,
            last_unix_s=self.last_s[request.request_id] + ANSWER_S,
            completed_unix_s=self.last_s[request.request_id] + ANSWER_S,
            predicted_ttft_s=found.ttft_s,
            predicted_e2e_s=found.e2e_s,
            snapshot_age_s=found.snapshot_age_s,
            calibration_steps=steps,
        )


def served_of(request: Arrival) -> Served:
    name, prompt, output = request.request_id, request.prompt_tokens, request.output_tokens
    nothing = dict.fromkeys(
        (
            *("asked_unix_s", "decided_unix_s", "first_unix_s", "last_unix_s"),
            *("completed_unix_s", "predicted_ttft_s", "predicted_e2e_s"),
            *("answer_delay_s", "snapshot_age_s"),
        ),
        0.0,
    )
    return Served(name, prompt, output, measured=True, calibration_steps=0, **nothing)


@pytest.fixture(scope="module")
def recording() -> Recording:
    draws = Random(5)
    lengths = MixedLengths(most_prompt=400, most_output=60, mean_output=25.0)
    requests = bursty(120, draws.uniform(5.9, 6.1), lengths, seed=5)
    return VirtualRun().serve(requests)


def test_the_predictors_state_is_restored(recording: Recording) -> None:
    found = list(states(recording, snapshots_of(recording)))
    assert any(state.pending for state in found)
    assert any(state.snapshot.waiting for state in found)
    # A wall clock in a double is exact to 0.1 us: sometimes that decides who gets into a step.
    same = [
        state.prediction.ttft_s == pytest.approx(state.served.predicted_ttft_s, abs=1e-5)
        and state.prediction.e2e_s == pytest.approx(state.served.predicted_e2e_s, abs=1e-5)
        for state in found
    ]
    assert sum(same) >= len(same) - 3
