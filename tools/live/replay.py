"""Reconstructs from a recording what the predictor knew at each prediction, and predicts again.

The predictor's own code and calibration take in the snapshots again, in order. A prediction says
how old the last message was and how many steps had been learnt from, which gives its snapshot and
its time. When exactly reservations and ends reached the predictor is not recorded; it is taken to
be `_CALL_S` after they were sent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from foretell.engine import SnapshotPredictor
from foretell.engine.published import Published
from foretell.engine.publishing import PrefixNews
from foretell.engine.questions import ExpectedArrival
from foretell.engine.snapshot_cache import SnapshotCache
from foretell.latency.calibration import OnlineStepTime
from foretell.length import PRIOR_TOKENS
from foretell.length.distribution import knots
from foretell.model import EngineSnapshot, GpuProfile, LengthEstimate, Prediction, RequestSpec
from foretell.services.predictor.__main__ import DISPATCH_DELAY_S, RESERVE_TTL_S
from foretell.tools.live.recording import Recording, Served
from foretell.tools.live.tap import decoded

_CALL_S = 0.5e-3
_CLOCK_SLACK_S = 1e-3


@dataclass(frozen=True, slots=True)
class State:
    """What the predictor knew when it was asked about `served`."""

    served: Served
    snapshot: EngineSnapshot
    pending: list[ExpectedArrival]
    """The reservations of the engine."""
    prediction: Prediction
    """The prediction of the current code."""


SpecOf = Callable[[Served], RequestSpec]


def spec_of(served: Served) -> RequestSpec:
    """A request whose length is known."""
    length = LengthEstimate(float(served.output_tokens), source="hint")
    return RequestSpec(served.request_id, served.prompt_tokens, served.output_tokens, length)


def told_of(served: Served) -> RequestSpec:
    """A request as the predictor knew it: with its length, or with the estimate of it."""
    if not served.max_tokens:
        return spec_of(served)
    length = LengthEstimate(served.expected_tokens, served.quantiles, "history")
    return RequestSpec(served.request_id, served.prompt_tokens, served.max_tokens, length)


def snapshots_of(recording: Recording) -> list[EngineSnapshot]:
    """The decoded snapshots of a recording; ValueError if there are none."""
    if not recording.snapshots:
        raise ValueError("the recording holds no snapshots")
    return decoded(recording.snapshots)


class _Replay:
    """The predictor and its calibration, which take in everything again."""

    def __init__(
        self,
        recording: Recording,
        snapshots: list[EngineSnapshot],
        spec_of: SpecOf,
        profile: GpuProfile | None,
    ) -> None:
        self._spec_of = spec_of
        self.predictor = SnapshotPredictor(
            dispatch_delay_s=DISPATCH_DELAY_S,
            length_row=knots,
            prior_tokens=PRIOR_TOKENS,
        )
        self.model = OnlineStepTime(profile)
        self._snapshots = snapshots
        self._heard = 0
        last = (s.completed_steps[-1].step + 1 if s.completed_steps else 0 for s in snapshots)
        self._steps_known = list(accumulate(last, max))
        self._calls = sorted(
            [(r.decided_unix_s + _CALL_S, 0, r) for r in recording.requests]
            + [(r.completed_unix_s + _CALL_S, 1, r) for r in recording.requests],
            key=lambda call: call[:2],
        )
        self._called = 0

    def until(self, served: Served) -> float:
        """Take in all that the predictor had received when it was asked; return that time."""
        end = self._end(served)
        while self._heard < end:
            snapshot = self._snapshots[self._heard]
            self._heard += 1
            self._call_until(snapshot.published_unix_s)
            if self.predictor.hear(snapshot):
                for step in snapshot.completed_steps:
                    self.model.observe(step.shape, step.duration_s)
        now = self.predictor.heard_unix_s + served.snapshot_age_s
        if not served.asked_unix_s - _CLOCK_SLACK_S <= now <= served.decided_unix_s:
            now = (served.asked_unix_s + served.decided_unix_s) / 2
        self._call_until(now)
        return now

    def prediction(self, request: RequestSpec, now: float) -> Prediction:
        """The prediction of a scheduler that knows all that the predictor knows."""
        predictor, model = self.predictor, self.model
        snapshot = predictor.publish(model, now, model.variances, model.steps)
        silent_s = predictor.silent_s(model, now)
        message = Published(now, predictor.heard_unix_s, snapshot, silent_s=silent_s)
        cache = SnapshotCache(knots)
        cache.follow("").hear(PrefixNews().add(message, predictor.ledger.prefixes), now)
        options = {"announced_only": False, "externality": False, "with_quantiles": True}
        (found,) = cache.predict([""], request, now, **options)
        return found

    def _end(self, served: Served) -> int:
        """The index after the last snapshot that the predictor had received.

        It was published `snapshot_age_s` before the predictor answered. If that fits several, the
        number of steps that the predictor had learnt from tells them apart.
        """
        end = found = self._heard
        while end < len(self._snapshots):
            answered = self._snapshots[end].published_unix_s + served.snapshot_age_s
            if answered > served.decided_unix_s:
                break
            end += 1
            early = answered < served.asked_unix_s - _CLOCK_SLACK_S
            if early or self._steps_known[end - 1] <= served.calibration_steps:
                found = end
        return found if found > self._heard else end

    def _call_until(self, unix_s: float) -> None:
        while self._called < len(self._calls) and self._calls[self._called][0] <= unix_s:
            at, ended, served = self._calls[self._called]
            self._called += 1
            if ended:
                self.predictor.complete(served.request_id)
            else:
                self.predictor.reserve(self._spec_of(served), at, RESERVE_TTL_S)


def states(
    recording: Recording,
    snapshots: list[EngineSnapshot],
    spec_of: SpecOf = spec_of,
    profile: GpuProfile | None = None,
) -> Iterator[State]:
    """The predictor's state at each prediction, in their order.

    `spec_of` gives requests as the predictor knows them; its step times start from `profile`.
    """
    replay = _Replay(recording, snapshots, spec_of, profile)
    for served in recording.requests:
        now = replay.until(served)
        predictor = replay.predictor
        if predictor.snapshot is None:
            raise ValueError("the recording begins after its first prediction")
        prediction = replay.prediction(spec_of(served), now)
        yield State(served, predictor.snapshot, predictor.ledger.rows(), prediction)
