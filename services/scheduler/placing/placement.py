"""Which instance gets a request: tag, predict, choose, reserve."""

import asyncio
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random

import grpc

from foretell import wire
from foretell.length import LengthHistory, PromptTokenEstimator, clip, from_hint
from foretell.model import LengthEstimate, Load, Prediction, RequestSpec
from foretell.policy import Candidate, Holding, Needs, Policy, Urgency
from foretell.policy.admission import unattainable
from foretell.policy.order import LargestLast, waits_too_long
from foretell.policy.shortlist import Shortlist
from foretell.telemetry import SchedulerMetrics
from foretell.v1 import predictor_pb2, tagger_pb2, tagger_pb2_grpc
from services.scheduler.background import Background
from services.scheduler.http.errors import unavailable
from services.scheduler.http.parsing import ParsedRequest
from services.scheduler.http.slo import SloUnattainable
from services.scheduler.placing.conversation import conversation_of
from services.scheduler.placing.peers import Breaker, NoAnswer, answer_of
from services.scheduler.placing.pool import Instance, Pool
from services.scheduler.placing.prefixes import Prefix, prefix_of
from services.scheduler.placing.tokens import PromptCounter
from services.scheduler.placing.turns import Turn, Turns

logger = logging.getLogger(__name__)

STALE_LOAD_S = 10.0
"""Age beyond which a load that a predictor once reported says nothing."""
_RESERVE_DEADLINE_S = 1.0


@dataclass(slots=True)
class Placement:
    """A decision, and what was believed when it was taken."""

    instance: Instance
    spec: RequestSpec
    prediction: Prediction | None
    """By which the instance was chosen; then, soon, what is foretold of it (`Reserve`)."""
    policy: str
    decided_unix_s: float
    took_s: float = 0.0
    """To decide, its turn and holding included."""


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
        hold_max_s: float,
        hold_recheck_s: float,
        candidates: int = 0,
        largest_last_ratio: float = 0.0,
    ) -> None:
        """`hold_max_s`: how long a policy may hold a request back; `hold_recheck_s`: until the
        predictors are asked again for it, unless an answer of this replica's ends before.
        `candidates`: the most predictors that are asked for one placement; 0: all.
        `largest_last_ratio`: of the requests to each model (`policy.order`); 0: none."""
        self.pool = pool
        self.policy = policy
        self.history = LengthHistory()
        self.prompt_estimator = PromptTokenEstimator()
        self._rng = rng
        self._shortlist = Shortlist[str](candidates)
        self._largest_last_ratio = largest_last_ratio
        self._orders: dict[str, LargestLast] = {}
        self._counter = counter
        self._tagger = tagger
        self._tagger_breaker = Breaker()
        self._metrics = metrics
        self._background = background
        self._tagger_deadline_s = tagger_deadline_s
        self._predictor_deadline_s = predictor_deadline_s
        self.turns = Turns()
        self._turn_deadline_s = turn_deadline_s
        self._hold_max_s = hold_max_s
        self._hold_recheck_s = hold_recheck_s

    async def describe(self, request: ParsedRequest, request_id: str) -> RequestSpec:
        """The request as predictors see it: prompt length counted or estimated, output tagged."""
        prompt_tokens = (
            request.token_ids
            or self._counter.count(request)
            or self.prompt_estimator.estimate(request.model, request.characters, request.messages)
        )
        length = await self._tag(request, request_id, prompt_tokens)
        prefix = Prefix()
        if self.policy.needs.prediction:
            prefix = prefix_of(request, prompt_tokens)
        spec = RequestSpec(
            request_id=request_id,
            prompt_tokens=prompt_tokens,
            max_tokens=request.max_tokens,
            length=length,
            priority=request.priority,
            sequences=request.sequences,
            prefix=prefix.hashes,
            prefix_chunk_tokens=prefix.chunk_tokens,
        )
        return self._ranked(request.model, spec)

    def _ranked(self, model: str, spec: RequestSpec) -> RequestSpec:
        """With its priority among the others to `model`, which is one of the engines'."""
        ratio = self._largest_last_ratio
        if not ratio:
            return spec
        return self._orders.setdefault(model, LargestLast(ratio)).ranked(spec)

    async def place(
        self,
        request: ParsedRequest,
        spec: RequestSpec,
        avoid: Collection[Instance],
        arrived_s: float,
    ) -> Placement:
        """Choose an instance, preferring those not in `avoid`.

        Raises `ApiError` if none lives, or if none could answer in time and the request would
        rather be told; one that was admitted once, as `avoid` says, is not turned away.
        `arrived_s`, of the monotonic clock: since when the request waits to be placed.
        """
        started = time.perf_counter()
        self._living(request, avoid)  # or it would wait in vain
        turn = None
        if self.policy.needs is not Needs.NOTHING:
            turn = await self._turn(Urgency(spec.priority, arrived_s))
        try:
            placement = await self._choose(request, spec, avoid, arrived_s, turn)
        finally:
            if turn is not None:
                turn.give()
        placement.took_s = time.perf_counter() - started
        self._metrics.placement.labels(self.policy.name).observe(placement.took_s)
        return placement

    def _living(self, request: ParsedRequest, avoid: Collection[Instance]) -> list[Instance]:
        living = self.pool.healthy(request.model)
        avoided = set(map(id, avoid))
        instances = [i for i in living if id(i) not in avoided] or living
        if not instances:
            raise unavailable(
                f"no engine that serves '{request.model}' is up at the moment", "no_instance"
            )
        return instances

    def _shortlisted(self, instances: list[Instance]) -> list[Instance]:
        """Whom to ask."""
        by_id = {instance.config.instance_id: instance for instance in instances}
        asked = self._shortlist.pick(
            list(by_id), lambda key: by_id[key].outstanding, self._rng.random, time.monotonic()
        )
        return [by_id[key] for key in asked]

    def _learn(self, instance: Instance, load: Load) -> None:
        """A predictor has told its instance's load."""
        now_s = time.monotonic()
        instance.last_load = (now_s, load)
        self._shortlist.learn(instance.config.instance_id, load, instance.outstanding, now_s)

    async def _turn(self, urgency: Urgency) -> Turn | None:
        """Placements that ask take turns: each must see the reservation of the one before it.

        None when the wait grew too long; then one places by what is known already.
        """
        turn = await self.turns.take(urgency, self._turn_deadline_s)
        if turn is None:
            self._metrics.degraded.labels("turn").inc()
        return turn

    async def _choose(
        self,
        request: ParsedRequest,
        spec: RequestSpec,
        avoid: Collection[Instance],
        arrived_s: float,
        turn: Turn | None,
    ) -> Placement:
        """Ask and choose; with a turn, again and again while the policy would rather wait."""
        while True:
            instances = self._living(request, avoid)
            if turn is not None:
                instances = self._shortlisted(instances)
            spec = replace(spec, slo=request.terms.slo)
            candidates = await self._candidates(spec, instances, ask=turn is not None)
            spec = replace(spec, slo=request.terms.left())  # of what the answers took, too
            if spec.priority > request.priority and waits_too_long(
                c.prediction for c in candidates
            ):
                spec = replace(spec, priority=request.priority)
            if request.terms.late == "reject" and not avoid:
                _refuse_if_late(request, spec, candidates)
            draw, chosen_id = self._rng.random(), None
            may_hold = turn is not None and time.monotonic() < arrived_s + self._hold_max_s
            if not (may_hold and isinstance(self.policy, Holding)):
                chosen_id = self.policy.choose(spec, candidates, draw)
            else:
                chosen_id = self.policy.consider(spec, candidates, draw)
            if chosen_id is not None:
                break
            assert turn is not None
            await turn.wait_for_news(self._hold_recheck_s)
        index = next(i for i, c in enumerate(candidates) if c.instance_id == chosen_id)
        if not instances[index].by_priority:
            spec = replace(spec, priority=request.priority)  # its engine would refuse another one
        placement = Placement(
            instances[index], spec, candidates[index].prediction, self.policy.name, time.time()
        )
        self._dispatch(placement)
        return placement

    def _dispatch(self, placement: Placement) -> None:
        instance = placement.instance
        instance.note_dispatch()
        if instance.stub is None:
            return
        message = predictor_pb2.ReserveRequest(
            request=wire.request_to_proto(placement.spec), predict=placement.prediction is not None
        )
        # The call is on its way when this returns, ahead of the next placement's questions.
        call = instance.stub.Reserve(message, timeout=_RESERVE_DEADLINE_S)
        self._background.spawn(self._reserved(placement, call))

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
            request=wire.request_to_proto(spec),
            externality=needs.externality,
            announced_only=True,
            means_only=not spec.slo.given and needs is not Needs.RISK,
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
        self._learn(instance, prediction.load)
        return _as_seen_here(prediction, instance)

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
                    self._learn(instance, load)
                    return load
        self._missing()
        return instance.load_within(STALE_LOAD_S)

    async def _reserved(
        self,
        placement: Placement,
        call: grpc.aio.UnaryUnaryCall[predictor_pb2.ReserveRequest, predictor_pb2.ReserveResponse],
    ) -> None:
        try:
            answer = await answer_of(call)
            if answer.HasField("prediction"):
                foretold = wire.prediction_from_proto(answer.prediction)
                placement.prediction = _as_seen_here(foretold, placement.instance)
        except (NoAnswer, wire.WireError) as error:
            self._note_silence(placement.instance, error)

    def _note_silence(self, instance: Instance, error: Exception) -> None:
        instance.breaker.failed()
        logger.debug("predictor of %s: %s", instance.config.instance_id, error)

    def _missing(self) -> None:
        self._metrics.degraded.labels("predictor").inc()


def _refuse_if_late(request: ParsedRequest, spec: RequestSpec, candidates: list[Candidate]) -> None:
    """Raise `SloUnattainable` where even the best instance is predicted to begin too late."""
    why = unattainable(spec.slo, [c.prediction for c in candidates if c.prediction is not None])
    if why is not None:
        raise SloUnattainable(request.terms, why)


def _as_seen_here(prediction: Prediction, instance: Instance) -> Prediction:
    """The twin foretells the engine; what reaches us has the way back behind it too."""
    back_s = instance.answer_delay_s
    return replace(
        prediction,
        ttft_s=prediction.ttft_s + back_s,
        e2e_s=prediction.e2e_s + back_s,
        ttft_quantiles=tuple((q, s + back_s) for q, s in prediction.ttft_quantiles),
        e2e_quantiles=tuple((q, s + back_s) for q, s in prediction.e2e_quantiles),
    )


def _candidate(instance: Instance, load: Load | None, prediction: Prediction | None) -> Candidate:
    return Candidate(
        instance_id=instance.config.instance_id,
        outstanding=instance.outstanding,
        dispatched_last_minute=instance.dispatched_last_minute(),
        load=load,
        prediction=prediction,
    )
