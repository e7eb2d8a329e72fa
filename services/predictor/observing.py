"""Observes an engine that publishes nothing, by its metrics and by what schedulers report."""

import asyncio
import json
import logging
import time
from math import inf, isfinite

from foretell.engine.observed import ObservedEngine
from foretell.engine.seen_limits import Evidence, evidence_of, least_model_len
from foretell.kernel.compiled import ImpossibleState
from foretell.model import RequestSpec
from foretell.model.limits import EngineLimits
from foretell.services.predictor.service import PredictorService
from foretell.services.process.probe import http_get
from foretell.v1 import predictor_pb2

logger = logging.getLogger(__name__)

POLL_S, _POLL_WAIT_S = 1.0, 2.0
"""Pause between two reads of the engine's metrics, and the timeout of a read."""
_MOST_BYTES = 1 << 20
_MODELS_EVERY = 30  # the engine's models are read once per so many reads of its metrics
_TELL_SOON_S = 0.02
_MOST_AGO_S = 60.0
_MOST_STEPS = 4096


class Observing:
    """Observes one engine and passes its predictor a snapshot whenever something was seen."""

    def __init__(self, service: PredictorService, url: str, given: EngineLimits) -> None:
        """`url`: where the engine's `/metrics` and `/v1/models` are; `given`: stated limits."""
        self._service = service
        self._url = url
        step_time = service.step_time
        self._engine = ObservedEngine(service.instance_id, given, step_time.step_s)
        self._senders: dict[str, object] = {}
        self._soon: asyncio.TimerHandle | None = None
        self._longest = 0

    def sent(self, sender: object, spec: RequestSpec, age_s: float) -> None:
        """Note that `sender` sent the engine a request `age_s` seconds ago."""
        self._senders[spec.request_id] = sender
        cached_tokens = self._service.predictor.ledger.cached_tokens(spec)
        self._engine.sent(spec, time.time() - age_s, cached_tokens)
        self._tell_soon()

    def ended(self, request_id: str, age_s: float, output_tokens: int = 0) -> None:
        """Note that a request ended or was abandoned `age_s` seconds ago; 0 tokens: unknown."""
        self._senders.pop(request_id, None)
        self._engine.ended(request_id, time.time() - _ago(age_s), output_tokens)
        self._tell_soon()

    def progressed(self, seen: predictor_pb2.Progress) -> None:
        """Take in what a sender has seen of its streams."""
        now_s = time.time()
        tokens = dict(zip(seen.request_id, seen.tokens, strict=False))
        first = dict(zip(seen.request_id, seen.first_step, strict=False))
        steps = seen.steps or [1] * len(seen.steps_ago_s)  # earlier schedulers do not send `steps`
        ends = [
            (now_s - _ago(ago_s), min(count, _MOST_STEPS))
            for ago_s, count in zip(seen.steps_ago_s, steps, strict=False)
        ]
        since_s = now_s - _ago(seen.since_ago_s) if seen.since_ago_s > 0 else inf
        try:
            self._engine.progressed(sorted(ends), tokens, first, since_s)
        except ImpossibleState:
            self._begin_again()
        self._tell()

    def left(self, sender: object) -> None:
        """End the requests of a sender that is gone; it reports them again when it comes back."""
        gone = [key for key, each in self._senders.items() if each is sender]
        for key in gone:
            self.ended(key, 0.0)

    async def run(self) -> None:
        """Poll the engine's metrics and models until cancelled."""
        looks = 0
        while True:
            if looks % _MODELS_EVERY == 0:
                await self._look_at_models()
            await self._look_at_metrics()
            looks += 1
            self._tell()
            await asyncio.sleep(POLL_S)

    async def _look_at_models(self) -> None:
        try:
            status, body = await http_get(f"{self._url}/v1/models", _POLL_WAIT_S)
            self._longest = least_model_len(json.loads(body)) if status == 200 else 0
        except (OSError, ValueError, RecursionError) as error:
            logger.debug("no models from %s: %s", self._url, error)

    async def _look_at_metrics(self) -> None:
        evidence = None
        try:
            status, body = await http_get(f"{self._url}/metrics", _POLL_WAIT_S)
            text = body[:_MOST_BYTES].decode(errors="replace")
            evidence = evidence_of(text) if status == 200 else None
        except OSError as error:
            logger.debug("no metrics from %s: %s", self._url, error)
        longest = EngineLimits(max_model_len=self._longest)
        if evidence is None:
            self._engine.learn(longest)
            return
        limits = evidence.limits.beside(longest)
        bounded = Evidence(evidence.running, evidence.waiting, limits, evidence.run)
        self._engine.compare(bounded, time.time())

    def _tell_soon(self) -> None:
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(_TELL_SOON_S, self._tell)

    def _tell(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        try:
            snapshot = self._engine.snapshot(time.time())
        except ImpossibleState:
            self._begin_again()
        else:
            self._service.hear(snapshot)

    def _begin_again(self) -> None:
        """Restart the observation after a bug here has led to an impossible state."""
        logger.exception("observing %s failed", self._url)
        self._engine.restart()


def _ago(seconds: float) -> float:
    return min(_MOST_AGO_S, max(0.0, seconds)) if isfinite(seconds) else 0.0
