"""What a predictor does with the engine's snapshots and the schedulers' notices."""

import logging
import math
import time
from collections.abc import Callable

from foretell.engine import SnapshotPredictor
from foretell.engine.published import Published, Snapshot
from foretell.latency.calibration import OnlineStepTime
from foretell.length.distribution import knots
from foretell.model import EngineSnapshot, RequestSpec
from foretell.services.predictor.metrics import SPREAD_STEPS, PredictorMetrics
from foretell.services.process.logs import about
from foretell.v1 import predictor_pb2

logger = logging.getLogger(__name__)

Clock = Callable[[], float]

_WORTH_TELLING = 0.01
"""Relative change of step times or of the dispatch delay after which a snapshot is published."""


class PredictorService:
    """One engine's predictor and its calibrated step time."""

    def __init__(
        self,
        instance_id: str,
        step_time: OnlineStepTime,
        metrics: PredictorMetrics,
        *,
        reserve_ttl_s: float,
        dispatch_delay_s: float,
        prior_output_tokens: float,
        profile: str = "",
        clock: Clock = time.time,
    ) -> None:
        """`profile`: JSON of the GPU profile whose tables the step times need; empty: none."""
        self.instance_id = instance_id
        self.predictor = SnapshotPredictor(
            dispatch_delay_s=dispatch_delay_s,
            length_row=knots,
            prior_tokens=prior_output_tokens,
        )
        self.step_time = step_time
        self.metrics = metrics
        self.changed: Callable[[], None] = lambda: None
        """Called when a snapshot has come, or a new reason why there is none."""
        self.unpredicted = ""
        """Why the engine publishes no snapshots; empty while it does."""
        self.profile = profile
        self._reserve_ttl_s = reserve_ttl_s
        self._clock = clock
        self._rested_s = clock()
        self._told = step_time.speed_factor, dispatch_delay_s
        metrics.snapshot_age.set_function(self._snapshot_age_s)

    def hear(self, snapshot: EngineSnapshot) -> None:
        """Take in a published snapshot: its state, and the durations of its steps."""
        self._rest()
        if not self.predictor.hear(snapshot):
            return
        self.unpredicted = ""
        self.metrics.snapshots.inc()
        changes = self.step_time.changes
        for step in snapshot.completed_steps:
            self.step_time.observe(step.shape, step.duration_s)
        self.metrics.step_error.set(self.step_time.relative_error)
        self.metrics.step_changes.inc(self.step_time.changes - changes)
        for steps in SPREAD_STEPS:
            self.metrics.step_spread.labels(steps).set(self.step_time.spread(steps))
        self.changed()

    def hear_nothing(self, reason: str) -> None:
        """Note that the engine is alive but publishes no snapshots, for this `reason`."""
        if reason != self.unpredicted:
            logger.warning("%s is not predicted: %s", self.instance_id, reason)
            self.unpredicted = reason
            self.changed()

    def _snapshot_age_s(self) -> float:
        return self.predictor.age_s(self._clock()) if self.predictor.snapshot else math.inf

    def reserve(self, spec: RequestSpec, age_s: float = 0.0) -> None:
        """Count `spec` as on its way since `age_s` seconds ago."""
        self.predictor.reserve(spec, self._clock() - age_s, self._reserve_ttl_s)
        logger.debug(
            "on its way to %s: %d tokens of prompt, some %.0f of output",
            self.instance_id,
            spec.prompt_tokens,
            spec.length.expected_tokens,
            extra=about(spec.x_request_id),
        )

    def complete(self, request: predictor_pb2.RequestEnded) -> predictor_pb2.Seen:
        """End a request; return what was seen of it."""
        seen = self.predictor.complete(request.request_id, answered=request.answered)
        self.metrics.preemptions.inc(seen.preemptions)
        logger.debug(
            "ended on %s: %s tokens of output, first one after %.3f s, preempted %d times",
            self.instance_id,
            seen.output_tokens,
            seen.ttft_s,
            seen.preemptions,
            extra=about(request.x_request_id),
        )
        return predictor_pb2.Seen(
            ttft_s=seen.ttft_s,
            output_tokens=seen.output_tokens,
            preemptions=seen.preemptions,
            prompt_tokens=seen.prompt_tokens,
            cached_tokens=seen.cached_tokens,
        )

    def publish(self) -> Snapshot | None:
        """Return the snapshot to publish; None before the engine's first one."""
        self._rest()
        snapshot = self.predictor.publish(
            self.step_time, self._clock(), self.step_time.variances, self.step_time.steps
        )
        self._told = self.step_time.speed_factor, self.predictor.dispatch_delay_s
        return snapshot

    def message(self, snapshot: Snapshot | None) -> Published:
        """Return the message that carries `snapshot`."""
        now_s = self._clock()
        silent_s = self.predictor.silent_s(self.step_time, now_s)
        return Published(now_s, self.predictor.heard_unix_s, snapshot, silent_s=silent_s)

    @property
    def is_busy(self) -> bool:
        """Whether the engine has requests."""
        return self.predictor.is_busy

    def has_changed(self) -> bool:
        """Whether step times or the dispatch delay differ by more than `_WORTH_TELLING` from those
        last published. They change even without an event, for example while an engine rests."""
        self._rest()
        self.predictor.ledger.expire(self._clock())
        factor, delay_s = self._told
        return (
            abs(self.step_time.speed_factor - factor) > _WORTH_TELLING * factor
            or abs(self.predictor.dispatch_delay_s - delay_s) > _WORTH_TELLING * delay_s
        )

    def _rest(self) -> None:
        """Tell the step-time model how long the engine has been idle since the last call."""
        now_s = self._clock()
        if not self.predictor.is_busy:
            self.step_time.rest(max(0.0, now_s - self._rested_s))
        self._rested_s = now_s
