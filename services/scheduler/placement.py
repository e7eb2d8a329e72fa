"""Which instance gets a request: tag, predict, choose, reserve."""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

import grpc

from foretell import wire
from foretell.length import LengthHistory, PromptTokenEstimator, clip, from_hint
from foretell.model import LengthEstimate, Load, Prediction, RequestSpec
from foretell.policy.base import Candidate, Needs, Policy
from foretell.telemetry import SchedulerMetrics
from foretell.v1 import predictor_pb2, tagger_pb2, tagger_pb2_grpc
from services.scheduler.background import Background
from services.scheduler.conversation import conversation_of
from services.scheduler.errors import unavailable
from services.scheduler.parsing import ParsedRequest
from services.scheduler.peers import Breaker, NoAnswer, answer_of
from services.scheduler.pool import Instance, Pool
from services.scheduler.prefixes import Prefix, prefix_of
from services.scheduler.tokens import PromptCounter

logger = logging.getLogger(__name__)

STALE_LOAD_S = 10.0
"""Age beyond which a load that a predictor once reported says nothing."""
_RESERVE_DEADLINE_S = 1.0


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision, and what was believed when it was taken."""

    instance: Instance
    spec: RequestSpec
    prediction: Prediction | None
    policy: str
    decided_unix_s: float
    took_s: float


class Placer:
    """Runs the policy over what tagger and predictors answer in time.

    Whatever is missing degrades the choice: no tagger, the local history estimates; no
    predictor, the last known load; nothing at all, the policy sees outstanding counts.
    """

    def __init__(
        self,
        pool: Pool,
        policy: Policy,
        rng: Random,
        *,
        counter: PromptCounter,
        tagger: tagger_pb2_grpc.TaggerStub | None,
        metrics: SchedulerMetrics,
        background: Background,
        tagger_deadline_s: float,
        predictor_deadline_s: float,
        turn_deadline_s: float,
    ) -> None:
        self.pool = pool
        self.policy = policy
        self.history = LengthHistory()
        self.prompt_estimator = PromptTokenEstimator()
        self._rng = rng
        self._counter = counter
        self._tagger = tagger
        self._tagger_breaker = Breaker()
        self._metrics = metrics
        self._background = background
        self._tagger_deadline_s = tagger_deadline_s
        self._predictor_deadline_s = predictor_deadline_s
        self._turn = asyncio.Lock()
        self._turn_deadline_s = turn_deadline_s

    async def describe(self, request: ParsedRequest, request_id: str) -> RequestSpec:
        """The request as predictors see it: prompt length counted or estimated, output tagged."""
        prompt_tokens = (
            request.token_ids
            or self._counter.count(request)
            or self.prompt_estimator.estimate(request.model, request.characters, request.messages)
        )
        length = await self._tag(request, request_id, prompt_tokens)
        prefix = Prefix()
        if self.policy.needs in (Needs.PREDICTION, Needs.EXTERNALITY):
            prefix = prefix_of(request, prompt_tokens)
        return RequestSpec(
            request_id=request_id,
            prompt_tokens=prompt_tokens,
            max_tokens=request.max_tokens,
            length=length,
            priority=request.priority,
            sequences=request.sequences,
            prefix=prefix.hashes,
            prefix_chunk_tokens=prefix.chunk_tokens,
        )

    async def place(
        self, request: ParsedRequest, spec: RequestSpec, avoid: Iterable[Instance]
    ) -> Placement:
        """Choose an instance, preferring those not in `avoid`; raises `ApiError` if none lives."""
        started = time.perf_counter()
        living = self.pool.healthy(request.model)
        avoided = set(map(id, avoid))
        instances = [i for i in living if id(i) not in avoided] or living
        if not instances:
            raise unavailable(
                f"no engine that serves '{request.model}' is up at the moment", "no_instance"
            )
        my_turn = self.policy.needs is not Needs.NOTHING and await self._wait_for_turn()
        try:
            candidates = await self._candidates(spec, instances, ask=my_turn)
            chosen_id = self.policy.choose(spec, candidates, self._rng.random())
            chosen = next(i for i in instances if i.config.instance_id == chosen_id)
            self._dispatch(chosen, spec)
        finally:
            if my_turn:
                self._turn.release()
        prediction = next(c.prediction for c in candidates if c.instance_id == chosen_id)
        took_s = time.perf_counter() - started
        self._metrics.placement.labels(self.policy.name).observe(took_s)
        return Placement(chosen, spec, prediction, self.policy.name, time.time(), took_s)

    async def _wait_for_turn(self) -> bool:
        """Placements that ask take turns: each must see the reservation of the one before it.

        False when the wait grew too long; then one places by what is known already.
        """
        try:
            async with asyncio.timeout(self._turn_deadline_s):
                await self._turn.acquire()
        except TimeoutError:
            self._metrics.degraded.labels("turn").inc()
            return False
        return True

    def _dispatch(self, instance: Instance, spec: RequestSpec) -> None:
        instance.note_dispatch()
        if instance.stub is None:
            return
        # The call is on its way when this returns, ahead of the next placement's questions.
        call = instance.stub.Reserve(
            predictor_pb2.ReserveRequest(request=wire.request_to_proto(spec)),
            timeout=_RESERVE_DEADLINE_S,
        )
        self._background.spawn(self._reserved(instance, call))

    async def _tag(
        self, request: ParsedRequest, request_id: str, prompt_tokens: int
    ) -> LengthEstimate:
        if request.hint_tokens:
            return clip(from_hint(request.hint_tokens), request.max_tokens)
        if self._tagger is not None and not self._tagger_breaker.open:
            message = tagger_pb2.TagRequest(
                request_id=request_id, model_name=request.model, tenant=request.tenant
            )
            wire.conversation_to_proto(conversation_of(request, prompt_tokens), message)
            try:
                answer = await answer_of(self._tagger.Tag(message, timeout=self._tagger_deadline_s))
                length = wire.length_from_proto(answer)
            except (NoAnswer, wire.WireError) as error:
                self._tagger_breaker.failed()
                logger.debug("tagger: %s", error)
            else:
                self._tagger_breaker.succeeded()
                return length
        if self._tagger is not None:
            self._metrics.degraded.labels("tagger").inc()
        return self.history.estimate(request.model, prompt_tokens, request.max_tokens)

    async def _candidates(
        self, spec: RequestSpec, instances: list[Instance], *, ask: bool
    ) -> list[Candidate]:
        needs = self.policy.needs
        if not ask:
            return [_candidate(i, i.load_within(STALE_LOAD_S), None) for i in instances]
        if needs is Needs.LOAD:
            loads = await asyncio.gather(*(self._load(i) for i in instances))
            return [_candidate(i, load, None) for i, load in zip(instances, loads, strict=True)]
        message = predictor_pb2.PredictRequest(
            request=wire.request_to_proto(spec), externality=needs is Needs.EXTERNALITY
        )
        predictions = await asyncio.gather(*(self._predict(i, message) for i in instances))
        return [
            _candidate(i, p.load if p else i.load_within(STALE_LOAD_S), p)
            for i, p in zip(instances, predictions, strict=True)
        ]

    async def _predict(
        self, instance: Instance, message: predictor_pb2.PredictRequest
    ) -> Prediction | None:
        if instance.stub is None or instance.breaker.open:
            self._missing()
            return None
        try:
            call = instance.stub.Predict(message, timeout=self._predictor_deadline_s)
            prediction = wire.prediction_from_proto(await answer_of(call))
        except (NoAnswer, wire.WireError) as error:
            self._note_silence(instance, error)
            self._missing()
            return None
        instance.breaker.succeeded()
        instance.last_load = (time.monotonic(), prediction.load)
        # The twin foretells the engine; what reaches us has the way back behind it too.
        return replace(
            prediction,
            ttft_s=prediction.ttft_s + instance.answer_delay_s,
            e2e_s=prediction.e2e_s + instance.answer_delay_s,
        )

    async def _load(self, instance: Instance) -> Load | None:
        if instance.stub is not None and not instance.breaker.open:
            try:
                call = instance.stub.Status(
                    predictor_pb2.StatusRequest(), timeout=self._predictor_deadline_s
                )
                answer = await answer_of(call)
            except NoAnswer as error:
                self._note_silence(instance, error)
            else:
                instance.breaker.succeeded()
                if answer.snapshot_age_s >= 0:
                    load = wire.load_from_proto(answer.load)
                    instance.last_load = (time.monotonic(), load)
                    return load
        self._missing()
        return instance.load_within(STALE_LOAD_S)

    async def _reserved(
        self,
        instance: Instance,
        call: grpc.aio.UnaryUnaryCall[predictor_pb2.ReserveRequest, predictor_pb2.ReserveResponse],
    ) -> None:
        try:
            await answer_of(call)
        except NoAnswer as error:
            self._note_silence(instance, error)

    def _note_silence(self, instance: Instance, error: Exception) -> None:
        instance.breaker.failed()
        logger.debug("predictor of %s: %s", instance.config.instance_id, error)

    def _missing(self) -> None:
        self._metrics.degraded.labels("predictor").inc()


def _candidate(instance: Instance, load: Load | None, prediction: Prediction | None) -> Candidate:
    return Candidate(
        instance_id=instance.config.instance_id,
        outstanding=instance.outstanding,
        dispatched_last_minute=instance.dispatched_last_minute(),
        load=load,
        prediction=prediction,
    )
