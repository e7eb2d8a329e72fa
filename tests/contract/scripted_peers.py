"""Scripted predictors and taggers: good ones, silent ones and liars, on real sockets."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from foretell.services.process.frames import FrameStream, frames_address, serve_frames
from foretell.services.process.traffic import OPEN
from foretell.v1 import predictor_pb2, predictor_pb2_grpc, tagger_pb2, tagger_pb2_grpc

LOAD = predictor_pb2.Load(
    running=2, waiting=1, used_blocks=10, total_blocks=100, max_num_seqs=8, waiting_prefill_blocks=1
)
UNDECODABLE = b"\xff\xff\xff\xff"


class Predictor(predictor_pb2_grpc.PredictorServicer):
    """Answers as its fields say, and remembers what it was told."""

    def __init__(
        self,
        e2e_s: float = 1.0,
        calibration_steps: int = 0,
        approximations: Sequence[str] = (),
    ) -> None:
        self.predicted = predictor_pb2.PredictResponse(
            instance_id="x",
            ttft_s=e2e_s / 10,
            e2e_s=e2e_s,
            tpot_s=0.01,
            load=LOAD,
            calibration_steps=calibration_steps,
            approximations=approximations,
        )
        self.foretold: predictor_pb2.PredictResponse | None = None
        """What it says when a request is reserved."""
        self.announced_only: list[bool] = []
        """Of each question for a prediction, whether it wanted nobody else reckoned with."""
        self.means_only: list[bool] = []
        """Of each question for a prediction, whether it wanted no quantiles."""
        self.completed = predictor_pb2.CompleteResponse()
        self.hanging = False
        self.asked: list[str] = []
        self.externality: list[bool] = []
        """Of each question for a prediction, whether it asked for that too."""
        self.reserved: list[predictor_pb2.RequestSpec] = []
        self.ended: list[str] = []

    async def _wait(self) -> None:
        if self.hanging:
            await asyncio.Event().wait()

    async def Predict(self, request: Any, context: Any) -> predictor_pb2.PredictResponse:
        self.asked.append("Predict")
        self.externality.append(request.externality)
        self.announced_only.append(request.announced_only)
        self.means_only.append(request.means_only)
        await self._wait()
        return self.predicted

    async def Status(self, request: Any, context: Any) -> predictor_pb2.StatusResponse:
        self.asked.append("Status")
        await self._wait()
        return predictor_pb2.StatusResponse(load=self.predicted.load)

    async def Reserve(self, request: Any, context: Any) -> predictor_pb2.ReserveResponse:
        self.reserved.append(request.request)
        await self._wait()
        return predictor_pb2.ReserveResponse(prediction=self.foretold if request.predict else None)

    async def Complete(self, request: Any, context: Any) -> predictor_pb2.CompleteResponse:
        self.ended.append(request.request_id)
        await self._wait()
        return self.completed


class Tagger(tagger_pb2_grpc.TaggerServicer):
    """Answers `estimate`, and remembers what it was asked and taught."""

    def __init__(self, expected_tokens: float = 42.0) -> None:
        self.estimate = tagger_pb2.LengthEstimate(expected_tokens=expected_tokens, source="model")
        self.hanging = False
        self.asked: list[tagger_pb2.TagRequest] = []
        self.observed: list[tagger_pb2.Observation] = []

    async def Tag(self, request: Any, context: Any) -> tagger_pb2.LengthEstimate:
        self.asked.append(request)
        if self.hanging:
            await asyncio.Event().wait()
        return self.estimate

    async def Observe(self, request: Any, context: Any) -> tagger_pb2.ObserveResponse:
        self.observed += request.observations
        return tagger_pb2.ObserveResponse()


class _Stream(FrameStream):
    """What a scheduler's stream to `tagger` is answered with; None: bytes of no message."""

    def __init__(self, tagger: Tagger | None) -> None:
        super().__init__()
        self._tagger = tagger
        self._greeted = False

    def received(self, payload: bytes) -> None:
        if self._tagger is None:
            self.send(UNDECODABLE)
        elif self._greeted:
            batch = tagger_pb2.TagBatch.FromString(payload)
            self._tagger.asked += batch.requests
            if not self._tagger.hanging:
                self.send(self._answer(batch, self._tagger.estimate).SerializeToString())
        self._greeted = True

    def _answer(
        self, batch: tagger_pb2.TagBatch, length: tagger_pb2.LengthEstimate
    ) -> tagger_pb2.EstimateBatch:
        """`length` for every request, whether it makes sense or not."""
        return tagger_pb2.EstimateBatch(
            estimates=[
                tagger_pb2.Estimates(
                    source=length.source,
                    levels=[each.level for each in length.quantiles],
                    numbers=[number],
                    expected_tokens=[length.expected_tokens],
                    tokens=[each.tokens for each in length.quantiles],
                )
                for number in range(batch.first, batch.first + len(batch.requests))
            ]
        )


class _Undecodable(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            return UNDECODABLE

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def serving(peer: Predictor | Tagger | None) -> AsyncIterator[str]:
    """The address at which `peer` answers; None answers every call with bytes of no message."""
    server = grpc.aio.server()
    if isinstance(peer, Predictor):
        predictor_pb2_grpc.add_PredictorServicer_to_server(peer, server)
    elif isinstance(peer, Tagger):
        tagger_pb2_grpc.add_TaggerServicer_to_server(peer, server)
    else:
        server.add_generic_rpc_handlers((_Undecodable(),))
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/peer"
        server.add_insecure_port(address)
        await server.start()
        streams = None
        if not isinstance(peer, Predictor):
            where = frames_address(address)
            streams, _ = await serve_frames(lambda: _Stream(peer), where, OPEN)
        try:
            yield address
        finally:
            if streams is not None:
                streams.close()
            await server.stop(None)


@asynccontextmanager
async def foreign(words: bytes = b"") -> AsyncIterator[str]:
    """An address that speaks no gRPC: it accepts connections, says `words`, and listens on."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            writer.write(words)
            await reader.read()
        except (OSError, asyncio.CancelledError):
            return  # the other side, or the test, has had enough
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
