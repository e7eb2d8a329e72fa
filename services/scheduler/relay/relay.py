"""Answers one request: place it, try engines until one answers, account for what happened.

Nothing is sent to the client before the engine's first line of output is here, so an attempt
that fails before it can be repeated on another engine without the client noticing.
"""

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass, replace

from starlette.types import Receive, Send

from foretell.model import RequestSpec
from foretell.telemetry import SchedulerMetrics
from services.scheduler.background import Background
from services.scheduler.http.errors import CLIENT_CLOSED_REQUEST, ApiError, unavailable
from services.scheduler.http.parsing import ParsedRequest
from services.scheduler.http.slo import SloUnattainable
from services.scheduler.placing.placement import Placement, Placer
from services.scheduler.placing.pool import Instance
from services.scheduler.record.recorder import Recorder
from services.scheduler.record.result import Result
from services.scheduler.relay.attempt import Attempt, AttemptFailed
from services.scheduler.relay.reply import Reply, disconnected
from services.scheduler.relay.transport import EngineClient

logger = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class RelayContext:
    """What all requests of this replica share."""

    engines: EngineClient
    placer: Placer
    recorder: Recorder
    metrics: SchedulerMetrics
    background: Background
    max_attempts: int


class Relay:
    """Answers one request."""

    def __init__(
        self,
        context: RelayContext,
        request: ParsedRequest,
        request_id: str,
        forwarded_headers: dict[str, str],
    ) -> None:
        self._context = context
        self._request = request
        self._request_id = request_id
        self._forwarded_headers = forwarded_headers
        self._placement: Placement | None = None
        """The last attempt's."""

    async def serve(self, receive: Receive, send: Send) -> None:
        """Answer on the ASGI connection; returns when the answer has ended or the client left."""
        reply = Reply(send, self._request_id)
        work = asyncio.create_task(self._answer(reply))
        gone = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                reply.status = CLIENT_CLOSED_REQUEST
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            self._count(reply.status)

    def _count(self, status: int) -> None:
        placement = self._placement
        instance_id = placement.instance.config.instance_id if placement else ""
        policy = placement.policy if placement else ""
        requests = self._context.metrics.requests
        requests.labels(self._request.model, instance_id, policy, str(status)).inc()

    async def _answer(self, reply: Reply) -> None:
        """Send the answer or an error; raises nothing but a cancellation."""
        try:
            spec = await self._context.placer.describe(self._request, self._request_id)
            await self._try_engines(reply, spec)
        except SloUnattainable as error:
            self._context.recorder.record_rejection(self._request, self._request_id, error)
            await reply.fail(error)
        except ApiError as error:
            await reply.fail(error)
        except Exception:
            # The last line of defence: even a defect of ours must end as an answer.
            logger.exception("request %s failed", self._request_id)
            await reply.fail(
                ApiError(500, "the scheduler failed; see its log", code="internal_error")
            )

    async def _try_engines(self, reply: Reply, spec: RequestSpec) -> None:
        context, arrived_s = self._context, time.monotonic()
        avoid: list[Instance] = []
        for attempt in range(1, context.max_attempts + 1):
            # Every attempt has an id of its own: the release of a failed one must not touch its
            # successor's reservation, and clients may use one X-Request-Id for many requests.
            spec = replace(spec, request_id=uuid.uuid4().hex)
            placement = await context.placer.place(self._request, spec, avoid, arrived_s)
            self._placement = placement
            try:
                await self._try_engine(reply, placement)
            except AttemptFailed as failure:
                instance_id = placement.instance.config.instance_id
                logger.warning(
                    "%s: attempt %d on %s failed: %s",
                    self._request_id,
                    attempt,
                    instance_id,
                    failure.reason,
                )
                context.metrics.retries.labels(instance_id, failure.reason).inc()
                avoid.append(placement.instance)
                await asyncio.sleep(_RETRY_PAUSE_S * attempt)
            else:
                return
        raise unavailable(
            f"the engines that were tried ({context.max_attempts}) failed before a first token",
            "engine_failed",
        )

    async def _try_engine(self, reply: Reply, placement: Placement) -> None:
        attempt = Attempt(
            self._request, self._request_id, self._forwarded_headers, placement, reply
        )
        try:
            await attempt.run(self._context.engines)
        except AttemptFailed:
            attempt.result.engine_failed = True
            raise
        except asyncio.CancelledError:
            attempt.result.abandoned = True
            raise
        finally:
            self._end_attempt(placement, attempt.result)

    def _end_attempt(self, placement: Placement, result: Result) -> None:
        """Give back what the placement took; called once for each placement."""
        placer, instance = self._context.placer, placement.instance
        assert instance.outstanding > 0, "an attempt ended twice"
        instance.outstanding -= 1
        if result.engine_failed:
            placer.pool.suspect(instance)
        placer.turns.news()
        result.ended_unix_s = time.time()
        self._context.background.spawn(
            self._context.recorder.record(self._request, self._request_id, placement, result)
        )
