"""Scripted predictors and taggers: good, silent and lying ones."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Unpack

import grpc

from foretell import wire
from foretell.model import Load, Prediction, RequestSpec
from foretell.placement.ports import Answer, Predicted, Wanted
from foretell.policy import Needs
from foretell.services.scheduler.placing import placer
from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.v1 import predictor_pb2, tagger_pb2, tagger_pb2_grpc

LOAD = Load(2, 1, 0, used_blocks=10, total_blocks=100, waiting_prefill_blocks=1, max_num_seqs=8)
UNDECODABLE = b"\xff\xff\xff\xff"


@dataclass
class Says:
    """The prediction of a scripted predictor."""

    ttft_s: float
    e2e_s: float
    calibration_steps: int
    approximations: Sequence[str]
    added_ttft_s: float | None = None
    added_e2e_s: float | None = None
    cached_tokens: int = 0
    ttft_quantiles: tuple[tuple[float, float], ...] = ()
    e2e_quantiles: tuple[tuple[float, float], ...] = ()
    load: Load = LOAD

    def prediction(self, instance: PoolInstance) -> Prediction:
        back_s = instance.answer_delay_s
        return Prediction(
            instance.config.instance_id,
            self.ttft_s + back_s,
            self.e2e_s + back_s,
            0.01,
            0.0,
            0.0,
            self.load,
            self.calibration_steps,
            added_ttft_s=self.added_ttft_s,
            added_e2e_s=self.added_e2e_s,
            cached_tokens=self.cached_tokens,
            ttft_quantiles=self.ttft_quantiles,
            e2e_quantiles=self.e2e_quantiles,
            approximations=tuple(self.approximations),
        )


_SCRIPTED: dict[str, "Predictor"] = {}


class Predictor:
    """Makes schedulers predict what its fields say, and records its calls.

    It replaces the predictions' port (`foretell.placement.ports.Predict`): it uses no snapshots.
    """

    def __init__(
        self,
        e2e_s: float = 1.0,
        calibration_steps: int = 0,
        approximations: Sequence[str] = (),
    ) -> None:
        self.predicted = Says(e2e_s / 10, e2e_s, calibration_steps, approximations)
        self.predicted_alone: Says | None = None
        """The prediction for a request that is about to be sent."""
        self.with_quantiles: list[bool] = []
        """For each prediction, whether quantiles were requested."""
        self.completed = predictor_pb2.Seen()
        self.silent = False
        self.asked: list[str] = []
        self.externality: list[bool] = []
        """For each prediction, whether the externality was requested."""
        self.reserved: list[predictor_pb2.RequestSpec] = []
        self.ended: list[str] = []


class ScriptedPredictors(Predictors):
    """A scheduler's predictors, of which tests may script some."""

    def follow(self, instance_id: str) -> None:
        if self._scripted(instance_id) is None:
            super().follow(instance_id)

    def predict(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        now_s: float,
        **wanted: Unpack[Wanted],
    ) -> Predicted:
        needs = wanted["needs"]
        if not any(map(self._scripted, instance_ids)):
            return super().predict(spec, instance_ids, now_s, **wanted)
        answers = []
        for instance_id in instance_ids:
            peer = self._scripted(instance_id)
            if peer is None:
                found = super().predict(spec, (instance_id,), now_s, **wanted)
                answers += found.answers
                continue
            peer.asked.append("load" if needs is Needs.LOAD else "prediction")
            if peer.silent:
                continue
            said = peer.predicted.prediction(self._pool.instances[instance_id])
            if needs is Needs.LOAD:
                answers.append(Answer(instance_id, said.load))
                continue
            peer.externality.append(needs.externality)
            peer.with_quantiles.append(wanted["with_quantiles"])
            answers.append(Answer(instance_id, said.load, said))
        return Predicted(answers)

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        peer = self._scripted(instance_id)
        if peer is None:
            return super().predict_one(spec, instance_id, now_s)
        return (peer.predicted_alone or peer.predicted).prediction(
            self._pool.instances[instance_id]
        )

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        peer = self._scripted(instance_id)
        if peer is None:
            super().reserve(spec, instance_id, now_s)
        else:
            peer.reserved.append(wire.request_to_proto(spec))

    async def complete(
        self, instance: PoolInstance, spec: RequestSpec, *, answered: bool, output_tokens: int = 0
    ) -> predictor_pb2.Seen | None:
        peer = _SCRIPTED.get(instance.config.predictor)
        if peer is None:
            return await super().complete(
                instance, spec, answered=answered, output_tokens=output_tokens
            )
        peer.ended.append(spec.request_id)
        return peer.completed

    def _scripted(self, instance_id: str) -> Predictor | None:
        instance = self._pool.instances.get(instance_id)
        return None if instance is None else _SCRIPTED.get(instance.config.predictor)


placer.Predictors = ScriptedPredictors  # type: ignore[misc]


class Tagger(tagger_pb2_grpc.TaggerServicer):
    """Answers with `estimate`, and records requests and observations."""

    def __init__(self, expected_tokens: float = 42.0) -> None:
        self.estimate = tagger_pb2.LengthEstimate(expected_tokens=expected_tokens, source="model")
        self.hanging = False
        self.asked: list[tagger_pb2.TagRequest] = []
        self.observed: list[tagger_pb2.Observation] = []

    async def TagMany(self, batch: Any, context: Any) -> tagger_pb2.EstimateBatch:
        self.asked += batch.requests
        if self.hanging:
            await asyncio.Event().wait()
        return tagger_pb2.EstimateBatch(estimates=[self.estimate] * len(batch.requests))

    async def Observe(self, request: Any, context: Any) -> tagger_pb2.ObserveResponse:
        self.observed += request.observations
        return tagger_pb2.ObserveResponse()


class _Undecodable(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            return UNDECODABLE

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def serving(peer: Predictor | Tagger | None) -> AsyncIterator[str]:
    """The address of `peer`; None answers every call with bytes that are no valid message."""
    if isinstance(peer, Predictor):
        address = f"unix:/scripted-{id(peer)}"
        _SCRIPTED[address] = peer
        yield address
        return
    server = grpc.aio.server()
    if isinstance(peer, Tagger):
        tagger_pb2_grpc.add_TaggerServicer_to_server(peer, server)
    else:
        server.add_generic_rpc_handlers((_Undecodable(),))
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/peer"
        server.add_insecure_port(address)
        await server.start()
        try:
            yield address
        finally:
            await server.stop(None)


@asynccontextmanager
async def foreign(words: bytes = b"") -> AsyncIterator[str]:
    """An address without gRPC: it accepts connections, sends `words`, and reads on."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            writer.write(words)
            await reader.read()
        except (OSError, asyncio.CancelledError):
            return  # the other side has closed, or the test has ended
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"127.0.0.1:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
