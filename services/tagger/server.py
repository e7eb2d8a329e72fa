"""The gRPC server: validation and sockets."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc

from foretell import wire
from foretell.config import TaggerSettings
from foretell.length import LengthHistory
from foretell.services.process import calls, runtime
from foretell.services.process.logs import about
from foretell.services.process.metrics_http import metrics_http
from foretell.services.process.traffic import Traffic
from foretell.services.tagger.batcher import MicroBatcher
from foretell.services.tagger.estimators import Answerer, TaggerEstimators
from foretell.services.tagger.metrics import TaggerMetrics
from foretell.services.tagger.models import ServedLengthModel
from foretell.services.tagger.problems import batch_problem, observe_problem, tag_problem
from foretell.v1 import tagger_pb2, tagger_pb2_grpc

logger = logging.getLogger(__name__)

MAX_PROMPT_CHARS = 16_384
"""Of longer prompts only head and tail are read, as much as a model's window could hold."""

_MAX_MESSAGE_BYTES = 8 << 20  # more than a scheduler accepts as a body
_MAX_CONCURRENT_CALLS = 4096
_DRAIN_S = 2.0
_SERVING = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse(status=SERVING)


@dataclass(frozen=True, slots=True)
class TaggerLimits:
    """Limits that bound a tagger's memory, whatever is sent."""

    max_batch: int = 32
    """Most prompts of a batch; `batch_s` makes batches smaller if reading is slow."""
    batch_s: float = 0.01
    """Longest time that reading one batch may take."""
    max_queue: int = 256
    """Most prompts that wait to be read; beyond it, history answers at once."""
    max_prompt_chars: int = MAX_PROMPT_CHARS
    history_size: int = 4096
    """Finished requests remembered per model and bucket of prompt lengths."""


LIMITS = TaggerLimits()

_TagContext = grpc.aio.ServicerContext[tagger_pb2.TagRequest, tagger_pb2.LengthEstimate]
_TagManyContext = grpc.aio.ServicerContext[tagger_pb2.TagBatch, tagger_pb2.EstimateBatch]
_ObserveContext = grpc.aio.ServicerContext[tagger_pb2.ObserveRequest, tagger_pb2.ObserveResponse]


class TaggerService(tagger_pb2_grpc.TaggerServicer):
    """`foretell.v1.Tagger`. A request it cannot accept gets INVALID_ARGUMENT naming the field."""

    def __init__(self, estimators: TaggerEstimators[Any]) -> None:
        self._estimators = estimators

    async def Tag(
        self, request: tagger_pb2.TagRequest, context: _TagContext
    ) -> tagger_pb2.LengthEstimate:
        problem = tag_problem(request)
        if problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        return wire.length_to_proto(await self._estimators.estimate(request))

    async def TagMany(
        self, batch: tagger_pb2.TagBatch, context: _TagManyContext
    ) -> tagger_pb2.EstimateBatch:
        problem = batch_problem(batch)
        if problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        answers = [self._estimate_if_valid(request) for request in batch.requests]
        return tagger_pb2.EstimateBatch(estimates=await asyncio.gather(*answers))

    async def Observe(
        self, request: tagger_pb2.ObserveRequest, context: _ObserveContext
    ) -> tagger_pb2.ObserveResponse:
        problem = observe_problem(request)
        if problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        self._estimators.observe(request.observations, time.monotonic())
        return tagger_pb2.ObserveResponse()

    async def _estimate_if_valid(self, request: tagger_pb2.TagRequest) -> tagger_pb2.LengthEstimate:
        """Return the estimate; an empty one for an invalid request."""
        if problem := tag_problem(request):
            logger.debug("refused: %s", problem, extra=about(request.x_request_id))
            return tagger_pb2.LengthEstimate()
        return wire.length_to_proto(await self._estimators.estimate(request))


async def serve(
    settings: TaggerSettings,
    model: ServedLengthModel[Any] | None,
    stop: asyncio.Event,
    limits: TaggerLimits = LIMITS,
) -> None:
    """Serve until `stop`. `model` None: history answers what hints do not."""
    metrics = TaggerMetrics()
    traffic = Traffic.of(settings)
    server = calls.server(
        traffic,
        options=[
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            # gRPC would let a second tagger bind the same port and share its calls.
            ("grpc.so_reuseport", 0),
        ],
        maximum_concurrent_rpcs=_MAX_CONCURRENT_CALLS,
    )
    port = calls.bind(traffic, server, settings.address)
    address = settings.listen or f"{settings.host}:{port}"
    with metrics_http(settings, metrics.registry) as metrics_port:
        async with _answerer(settings, model, metrics, limits) as answerer:
            estimators = TaggerEstimators(
                LengthHistory(limits.history_size), answerer, metrics, limits.max_prompt_chars
            )
            tagger_pb2_grpc.add_TaggerServicer_to_server(TaggerService(estimators), server)
            server.add_generic_rpc_handlers((_health_handler(),))
            await server.start()
            logger.info("serving on %s, metrics on port %d", address, metrics_port)
            runtime.announce(settings.ready_file, address=address, metrics_port=metrics_port)
            await stop.wait()
        # The batcher has closed: requests that waited for it are being answered without it.
        await server.stop(_DRAIN_S)


@contextlib.asynccontextmanager
async def _answerer(
    settings: TaggerSettings,
    model: ServedLengthModel[Any] | None,
    metrics: TaggerMetrics,
    limits: TaggerLimits,
) -> AsyncIterator[Answerer[Any] | None]:
    if model is None:
        yield None
        return
    batcher = MicroBatcher(
        model.infer,
        metrics,
        max_batch=limits.max_batch,
        budget_s=limits.batch_s,
        max_queue=limits.max_queue,
    )
    try:
        yield Answerer(model, batcher, metrics)
    finally:
        await batcher.close()


def _health_handler() -> "grpc.GenericRpcHandler[bytes, bytes]":
    """`grpc.health.v1.Health/Check`, for probes. Its one answer is not worth a dependency."""

    async def check(_request: bytes, _context: object) -> bytes:
        return _SERVING

    return grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(check)}
    )
