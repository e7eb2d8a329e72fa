"""Questions to the predictor sidecars, and what they are told of reservations."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

import grpc

from foretell import wire
from foretell.model import Prediction, RequestSpec
from foretell.placement import effects, events
from foretell.policy import Needs
from foretell.v1 import predictor_pb2
from services.scheduler.placing.peers import NoAnswer, answer_of
from services.scheduler.placing.pool import Instance, Pool

logger = logging.getLogger(__name__)

_RESERVE_DEADLINE_S = 1.0

ReserveCall = grpc.aio.UnaryUnaryCall[predictor_pb2.ReserveRequest, predictor_pb2.ReserveResponse]


class Predictors:
    """The sidecars of the instances in `pool`, asked at once and each within `deadline_s`."""

    def __init__(self, pool: Pool, deadline_s: float) -> None:
        self._pool = pool
        self._deadline_s = deadline_s

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
        """Announce a request; the call is on its way when this returns. None without a sidecar.

        What is asked after it is answered with the reservation counted.
        """
        if instance.stub is None:
            return None
        message = predictor_pb2.ReserveRequest(request=wire.request_to_proto(spec), predict=predict)
        call: ReserveCall = instance.stub.Reserve(message, timeout=_RESERVE_DEADLINE_S)
        return call

    async def release(self, instance: Instance, spec: RequestSpec) -> None:
        """Withdraw a reservation: the request is not sent after all."""
        if instance.stub is None:
            return
        message = predictor_pb2.CompleteRequest(request_id=spec.request_id, answered=False)
        with suppress(NoAnswer):  # then the reservation expires by itself
            await answer_of(instance.stub.Complete(message, timeout=_RESERVE_DEADLINE_S))


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
    return replace(
        prediction,
        ttft_s=prediction.ttft_s + back_s,
        e2e_s=prediction.e2e_s + back_s,
        ttft_quantiles=tuple((q, s + back_s) for q, s in prediction.ttft_quantiles),
        e2e_quantiles=tuple((q, s + back_s) for q, s in prediction.e2e_quantiles),
    )


def _silence(instance_id: str, error: Exception) -> events.Answer:
    logger.debug("predictor of %s: %s", instance_id, error)
    return events.Answer(instance_id, silent=True)
