"""Questions to the predictor sidecars, and what they are told of reservations."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from heapq import nsmallest
from math import inf
from typing import TYPE_CHECKING

import grpc

from foretell import wire
from foretell.kernel.compiled import ImpossibleState
from foretell.model import Prediction, RequestSpec
from foretell.placement import effects, events
from foretell.policy import Needs
from foretell.services.scheduler.placing.peers import NoAnswer, answer_of
from foretell.services.scheduler.placing.pool import Instance, Pool
from foretell.telemetry import SchedulerMetrics
from foretell.v1 import predictor_pb2

if TYPE_CHECKING:  # for who has no numpy, and calls
    from foretell.engine.gallery import Gallery
    from foretell.engine.hindsight import Scene
    from foretell.engine.lanes import Lane
    from foretell.services.scheduler.placing.following import Following

logger = logging.getLogger(__name__)

_RESERVE_DEADLINE_S = 1.0
_COMPLETE_DEADLINE_S = 5.0  # nobody waits for it
MOST_FOLLOWED = 64
"""Predictors that are followed at most: of larger pools others in turn."""
_MEET_AT = 3
"""Predictors, the first by the names of their instances, that every replica follows: by way of them
replicas tell each other."""
_SWAP_EVERY = 8
"""Placements after which another predictor is followed in place of one, in a larger pool."""
_LEAST_SWAP_S = 0.05

ReserveCall = grpc.aio.UnaryUnaryCall[predictor_pb2.ReserveRequest, predictor_pb2.ReserveResponse]


def open_gallery() -> "Gallery | None":
    """An empty gallery; None where numpy is missing."""
    try:
        from foretell.engine.gallery import Gallery  # noqa: PLC0415
        from foretell.length.distribution import knots  # noqa: PLC0415
    except ImportError as error:
        logger.warning("predictors are called for each request, which is slow: %s", error)
        return None
    return Gallery(knots)


class Predictors:
    """The sidecars of the instances in `pool`.

    Those that are followed are not asked: the gallery has what they would say. The others are
    called, all at once and each within `deadline_s`.
    """

    def __init__(
        self,
        pool: Pool,
        deadline_s: float,
        gallery: "Gallery | None",
        metrics: SchedulerMetrics,
        *,
        listener: Callable[[events.InstanceFollowed], None],
        random: Callable[[], float],
    ) -> None:
        """Without a `gallery` none is followed. `listener` is told who is; `random` draws from
        [0, 1)."""
        self._pool = pool
        self._listener = listener
        self._random = random
        self._placed = 0
        self._swapped_s = 0.0
        self._deadline_s = deadline_s
        self._gallery = gallery
        self._refused = metrics.snapshots_refused
        self._followed: dict[str, Following] = {}
        self.passed_on: Callable[[predictor_pb2.Spending], None] = lambda spending: None
        """Is told what another replica tells all."""
        self._clock = asyncio.get_running_loop().time

    def follow(self, instance_id: str) -> None:
        """Follow the predictor of that instance from now on, unless there are too many."""
        instance, gallery = self._pool.instances.get(instance_id), self._gallery
        if instance is None or instance.stub is None or instance_id in self._followed:
            return
        if gallery is None:
            return
        if len(self._followed) >= MOST_FOLLOWED:
            meeting = self._meeting()
            if instance_id not in meeting:
                return
            self.leave(next(each for each in self._followed if each not in meeting))
        from foretell.services.scheduler.placing.following import Following  # noqa: PLC0415 - needs numpy

        following = Following(
            instance.config.predictor,
            self._pool.traffic,
            gallery.follow(instance_id),
            lambda reason: self._refused.labels(instance_id, reason).inc(),
            lambda shown: self._shown(instance_id, shown),
        )
        following.passed_on = self.passed_on
        self._followed[instance_id] = following
        following.start()

    def _meeting(self) -> list[str]:
        return nsmallest(min(_MEET_AT, MOST_FOLLOWED // 2), self._pool.instances)

    def ways(self) -> list[Callable[[predictor_pb2.Spending], None]]:
        """The ways to the other replicas: what goes by all of them, each hears more than once."""
        is_open = (name for name, each in self._followed.items() if each.is_open)
        return [self._followed[name].pass_on for name in nsmallest(_MEET_AT, is_open)]

    def _shown(self, instance_id: str, shown: bool) -> None:
        """Where all can be followed, one that is not must not be left out."""
        if len(self._pool.instances) > MOST_FOLLOWED or not shown:
            self._listener(events.InstanceFollowed(instance_id, shown))

    def leave(self, instance_id: str) -> None:
        """Follow that instance's predictor no longer."""
        following = self._followed.pop(instance_id, None)
        if following is not None and self._gallery is not None:
            following.close()
            self._gallery.leave(instance_id)
            self._shown(instance_id, shown=False)

    def worked_s(self, instance_id: str) -> float:
        """When that engine was last heard to have made a step, on the event loop's clock; -inf
        where its predictor is not followed."""
        following = self._followed.get(instance_id)
        return following.engine.worked_s if following is not None else -inf

    def close(self) -> None:
        """Follow nobody any longer."""
        for instance_id in list(self._followed):
            self.leave(instance_id)

    @property
    def followed(self) -> list[Instance]:
        """The instances whose predictors are to tell by themselves what they know."""
        found = self._pool.instances
        return [found[each] for each in self._followed if each in found]

    def calibration_steps(self, instance_id: str) -> int | None:
        """Steps of that engine that its predictions have learnt from; None: nothing was heard."""
        if self._gallery is None or instance_id not in self._followed:
            return None
        predictor = self._gallery[instance_id].predictor
        return None if predictor is None else predictor.calibration_steps

    def approximations(self, instance_id: str) -> tuple[str, ...]:
        """What that engine does that predictions do not model, as far as anything was heard."""
        if self._gallery is None or instance_id not in self._followed:
            return ()
        predictor = self._gallery[instance_id].predictor
        return () if predictor is None else predictor.engine_config.approximations

    def unpredicted(self, instance: Instance) -> str:
        """Why nothing is predicted of it, as far as that is known; else empty."""
        if not instance.config.predictor:
            return "it has no predictor: placed by what is outstanding"
        following = self._followed.get(instance.config.instance_id)
        return following.unpredicted if following is not None else ""

    def all_unpredicted(self) -> dict[str, str]:
        """Why, by instance, of those of which nothing is predicted."""
        found = self._pool.instances.items()
        reasons = {name: self.unpredicted(instance) for name, instance in found}
        return {name: reason for name, reason in reasons.items() if reason}

    def scene(self, instance_ids: Sequence[str], now_s: float) -> "Scene | None":
        """What the predictions `known` of those instances at `now_s` were made from."""
        if self._gallery is None or not instance_ids:
            return None
        return self._gallery.scene(instance_ids, now_s)

    def known(self, effect: effects.Ask, now_s: float) -> list[events.Answer]:
        """The answers of those who need not be asked."""
        gallery = self._gallery
        if gallery is None:
            return []
        fresh = self._fresh(gallery, effect.instance_ids, now_s)
        if effect.needs is Needs.LOAD:
            return [events.Answer(i, gallery.load(i)) for i in fresh]
        try:
            found = gallery.predict(
                fresh,
                effect.spec,
                now_s,
                announced_only=True,
                externality=effect.needs.externality,
                with_quantiles=effect.with_quantiles,
                single=effect.single,
            )
        except ImpossibleState:  # they are asked instead
            logger.exception("predicting from pictures failed")
            return []
        return [events.Answer(i, p.load, p) for i, p in zip(fresh, found, strict=True)]

    def review(self, effect: effects.Review, now_s: float) -> events.Reviewed:
        """How long a request still waits where it is, and how long elsewhere.

        By pictures alone: a call for it would cost more than most waits are worth.
        """
        gallery, wait_s, begun = self._gallery, None, False
        if gallery is not None and self._fresh(gallery, (effect.instance_id,), now_s):
            try:
                wait_s = gallery.wait_s(effect.instance_id, effect.spec, now_s)
                begun = gallery.has_begun(effect.instance_id, effect.spec.request_id)
            except ImpossibleState:
                logger.exception("predicting from a picture failed")
        if wait_s is None:
            return events.Reviewed(effect.key, None, begun=begun)
        needs, quantiles = effect.needs, effect.with_quantiles
        asked = effects.Ask(effect.key, effect.spec, effect.others, needs, quantiles)
        return events.Reviewed(effect.key, wait_s, self.known(asked, now_s))

    def lanes(self) -> "dict[str, list[Lane]]":
        """What becomes of the requests on each instance that is followed and known."""
        gallery, now_s = self._gallery, self._clock()
        if gallery is None:
            return {}
        try:
            fresh = self._fresh(gallery, list(self._followed), now_s)
            return {instance_id: gallery.lanes(instance_id, now_s) for instance_id in fresh}
        except ImpossibleState:
            logger.exception("predicting from pictures failed")
            return {}

    async def ask(self, effect: effects.Ask) -> list[events.Answer]:
        """One answer for each predictor that is asked; those that fail or are late are silent."""
        if effect.needs is Needs.LOAD:
            return await asyncio.gather(*(self._load(name) for name in effect.instance_ids))
        message = predictor_pb2.PredictRequest(
            request=wire.request_to_proto(effect.spec),
            externality=effect.needs.externality,
            announced_only=True,
            means_only=not effect.with_quantiles,
        )
        return await asyncio.gather(*(self._predict(name, message) for name in effect.instance_ids))

    def foretold(self, instance: Instance, spec: RequestSpec) -> Prediction | None:
        """What is foretold of a request that is about to be sent; None where a call must tell."""
        gallery, instance_id = self._gallery, instance.config.instance_id
        now_s = self._clock()
        if gallery is None or not self._fresh(gallery, (instance_id,), now_s):
            return None
        (prediction,) = gallery.predict(
            (instance_id,),
            spec,
            now_s,
            announced_only=False,
            externality=False,
            with_quantiles=False,  # clients are told of means
        )
        return prediction

    async def _predict(
        self, instance_id: str, message: predictor_pb2.PredictRequest
    ) -> events.Answer:
        instance = self._pool.instances.get(instance_id)
        if instance is None or instance.stub is None:
            return events.Answer(instance_id, silent=True)  # it has just been removed
        try:
            call = instance.stub.Predict(message, timeout=self._deadline_s)
            prediction = wire.prediction_from_proto(await answer_of(call))
        except (NoAnswer, wire.WireError) as error:
            return _silence(instance_id, error)
        return events.Answer(instance_id, prediction.load, as_seen_here(prediction, instance))

    async def _load(self, instance_id: str) -> events.Answer:
        instance = self._pool.instances.get(instance_id)
        if instance is None or instance.stub is None:
            return events.Answer(instance_id, silent=True)
        try:
            call = instance.stub.Status(predictor_pb2.StatusRequest(), timeout=self._deadline_s)
            answer = await answer_of(call)
            known = answer.snapshot_age_s >= 0
            return events.Answer(instance_id, wire.load_from_proto(answer.load) if known else None)
        except (NoAnswer, wire.WireError) as error:
            return _silence(instance_id, error)

    def reserve(
        self, instance: Instance, spec: RequestSpec, *, predict: bool
    ) -> ReserveCall | None:
        """Announce a request; on return the notice or the call is on its way.

        What is asked after it is answered with the reservation counted. Returns the call, if it was
        one; without a sidecar there is nothing to do.
        """
        following = self._following(instance)
        self._placed += 1
        if self._placed % _SWAP_EVERY == 0 and len(self._pool.instances) > len(self._followed):
            self._swap()
        if (following is not None and following.reserve(spec)) or instance.stub is None:
            return None
        message = predictor_pb2.ReserveRequest(request=wire.request_to_proto(spec), predict=predict)
        call: ReserveCall = instance.stub.Reserve(message, timeout=_RESERVE_DEADLINE_S)
        return call

    def revise(self, instance: Instance, spec: RequestSpec) -> None:
        """Tell what else is known of a request that was announced, where that costs no call."""
        following = self._following(instance)
        if following is not None:
            following.revise(spec)

    def _swap(self) -> None:
        """In a pool too large to follow all, follow one drawn at random in place of the fullest.

        The others are remembered, so each placement chooses among what was good and what is new
        (Mitzenmacher, Prabhakar and Shah, "Load balancing with memory", FOCS 2002).
        """
        gallery, now_s = self._gallery, self._clock()
        if gallery is None or len(self._followed) < MOST_FOLLOWED:
            return  # others have no predictor
        if now_s < self._swapped_s + _LEAST_SWAP_S:
            return
        names = list(self._pool.instances)
        drawn = names[int(self._random() * len(names))]
        instance = self._pool.instances[drawn]
        if drawn in self._followed or not instance.healthy or instance.stub is None:
            return
        self._swapped_s = now_s
        fresh = set(gallery.fresh(list(self._followed), now_s))
        others = self._followed.keys() - self._meeting()
        self.leave(max(others, key=lambda each: _fullness(gallery, each, fresh)))
        self.follow(drawn)

    async def complete(
        self, instance: Instance, spec: RequestSpec, *, answered: bool
    ) -> predictor_pb2.CompleteResponse | None:
        """The request has ended: its reservation is released. What the sidecar saw of it, if that
        is known."""
        following = self._following(instance)
        if following is not None:
            seen = following.ended(spec, answered=answered)
            if seen is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_COMPLETE_DEADLINE_S):
                        return await seen
                return None
        if instance.stub is None:
            return None
        message = wire.ended_to_proto(spec, answered=answered)
        with suppress(NoAnswer):  # then the reservation expires by itself
            return await answer_of(instance.stub.Complete(message, timeout=_COMPLETE_DEADLINE_S))
        return None

    def _fresh(self, gallery: "Gallery", instance_ids: Sequence[str], now_s: float) -> list[str]:
        """Those whose pictures may be believed, which know now how long answers take to here."""
        fresh = gallery.fresh(instance_ids, now_s)
        for instance_id in fresh:
            delay_s = self._pool.instances[instance_id].answer_delay_s
            gallery[instance_id].answer_delay_s = delay_s
        return fresh

    def _following(self, instance: Instance) -> "Following | None":
        """Who follows this instance's predictor; None where it is called."""
        instance_id = instance.config.instance_id
        if self._pool.instances.get(instance_id) is not instance:
            return None  # it was removed, and another one may have its id
        return self._followed.get(instance_id)


def _fullness(gallery: "Gallery", instance_id: str, fresh: Collection[str]) -> float:
    """Requests per seat; of whom nothing new is known, infinitely many."""
    if instance_id not in fresh:
        return inf
    load = gallery.load(instance_id)
    return load.requests / load.max_num_seqs


async def reserved_prediction(call: ReserveCall, instance: Instance) -> Prediction | None:
    """The prediction for a reserved request, if one was asked for and came."""
    try:
        answer = await answer_of(call)
        if answer.HasField("prediction"):
            return as_seen_here(wire.prediction_from_proto(answer.prediction), instance)
    except (NoAnswer, wire.WireError) as error:
        _silence(instance.config.instance_id, error)
    return None


def as_seen_here(prediction: Prediction, instance: Instance) -> Prediction:
    """Add the answer's way from the engine back to the scheduler, which the twin does not know."""
    back_s = instance.answer_delay_s
    return prediction._replace(
        ttft_s=prediction.ttft_s + back_s,
        e2e_s=prediction.e2e_s + back_s,
        ttft_quantiles=tuple((q, s + back_s) for q, s in prediction.ttft_quantiles),
        e2e_quantiles=tuple((q, s + back_s) for q, s in prediction.e2e_quantiles),
    )


def _silence(instance_id: str, error: Exception) -> events.Answer:
    logger.debug("predictor of %s: %s", instance_id, error)
    return events.Answer(instance_id, silent=True)
