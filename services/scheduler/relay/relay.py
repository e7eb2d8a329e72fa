"""Answers one request: place it, try engines until one answers, account for what happened.

Nothing is sent to the client before the engine's first line of output is here, so an attempt
that fails before it can be repeated on another engine without the client noticing. After it another
engine can go on with most streams.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from foretell.services.process.logs import about
from foretell.services.scheduler.api.errors import CLIENT_CLOSED_REQUEST, ApiError
from foretell.services.scheduler.api.parsing import ParsedRequest
from foretell.services.scheduler.api.slo import SloUnattainable
from foretell.services.scheduler.http.exchange import Answering, ClientLeft
from foretell.services.scheduler.placing.placement import Placement
from foretell.services.scheduler.placing.placer import Placer
from foretell.services.scheduler.record.recorder import Recorder
from foretell.services.scheduler.record.tracing import RequestTrace, Tracing
from foretell.services.scheduler.relay.attempt import (
    Attempt,
    AttemptFailed,
    BrokenOff,
    Refusal,
    TakenBack,
    engine_lost,
)
from foretell.services.scheduler.relay.continuation import Progress, can_continue, progress_of
from foretell.services.scheduler.relay.reply import Reply, reply_to
from foretell.services.scheduler.relay.told import with_text
from foretell.services.scheduler.relay.transport import EngineClient
from foretell.telemetry import SchedulerMetrics

logger = logging.getLogger(__name__)


_SPENT = (CLIENT_CLOSED_REQUEST, 502)
"""Statuses with which an engine may have generated tokens all the same."""


@dataclass(frozen=True, slots=True)
class RelayContext:
    """What all requests of this replica share."""

    engines: EngineClient
    placer: Placer
    recorder: Recorder
    metrics: SchedulerMetrics
    tracing: Tracing | None = None
    keep_alive_s: float = 0.0
    """After so long a silence a stream gets a comment; 0: it does not."""


class Refused(Exception):
    """All engines that were tried refuse the request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.status)
        self.refusal = refusal


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
        self._can_continue = False
        self._progress: Progress | None = None
        """What the client has got, where another engine could go on with it."""
        self._failures: list[str] = []
        """Why attempts failed."""
        self._trace: RequestTrace | None = None

    @property
    def streams(self) -> bool:
        """The answer comes event by event."""
        return self._request.stream

    async def serve(self, exchange: Answering) -> None:
        """Answer; returns when the answer has ended or the client left.

        Raises `ClientLeft` if it has left already.
        """
        if exchange.left:
            raise ClientLeft
        keep_alive_s = self._context.keep_alive_s if self._request.stream else 0.0
        reply = reply_to(exchange, self._request_id, self._request.endpoint, keep_alive_s)
        work = asyncio.current_task()
        assert work is not None
        left = False

        def leave() -> None:
            nonlocal left
            left = work.cancel()

        exchange.on_left = leave
        if (tracing := self._context.tracing) is not None:
            self._trace = tracing.request(self._request, self._request_id, self._forwarded_headers)
        try:
            await self._answer(reply)
        except asyncio.CancelledError:
            if not left:
                raise  # it is the server that ends
            work.uncancel()
            reply.status = CLIENT_CLOSED_REQUEST
        finally:
            exchange.on_left = None
            reply.over()
            placement, grant = self._placement, self._request.grant
            if grant is not None and reply.status >= 400 and reply.status not in _SPENT:
                grant.settle(0)
            self._context.recorder.count(self._request.model, placement, reply.status)
            if self._trace is not None:
                self._trace.end(reply.status)

    async def _answer(self, reply: Reply) -> None:
        """Send the answer or an error; raises nothing but a cancellation."""
        try:
            await self._try_engines(reply)
        except SloUnattainable as error:
            self._context.recorder.record_rejection(self._request, self._request_id, error)
            reply.fail(error)
        except Refused as refused:
            refusal = refused.refusal
            reply.start(refusal.status, refusal.headers, has_length=True)
            reply.end(refusal.body)
        except ApiError as error:
            reply.fail(error)
        except Exception:
            # The last line of defence: even a defect of ours must end as an answer.
            logger.exception("the scheduler failed", extra=about(self._request_id))
            reply.fail(ApiError(500, "the scheduler failed; see its log", code="internal_error"))

    async def _try_engines(self, reply: Reply) -> None:
        """Try one engine after the other, until one answers or placing raises `ApiError`."""
        placer = self._context.placer
        placement = await placer.place(self._request, self._request_id)
        self._can_continue = can_continue(self._request, placement.spec.prompt_tokens)
        while True:
            self._placement = placement
            try:
                broken = await self._try_engine(reply, placement)
            except AttemptFailed as failure:
                instance_id = placement.instance.config.instance_id
                log = logger.info if failure.unfit else logger.warning
                log(
                    "attempt %d on %s failed: %s%s",
                    placement.attempt,
                    instance_id,
                    failure.reason,
                    f": {failure.unfit or failure.said}" if failure.unfit or failure.said else "",
                    extra=about(self._request_id),
                )
                metrics, is_break = self._context.metrics, isinstance(failure, BrokenOff)
                counter = metrics.continuations if is_break else metrics.retries
                if not failure.unfit:
                    counter.labels(instance_id, failure.reason).inc()
                placement = await self._retry(reply, placement, failure)
            except TakenBack:
                placement = await placer.place_again(placement)
            except BaseException:  # refused, cancelled, or a defect: no attempt follows
                placer.end(placement)
                raise
            else:
                placer.end(placement, broken=broken, answered=not broken)
                return

    async def _retry(self, reply: Reply, placement: Placement, failure: AttemptFailed) -> Placement:
        """Where the next attempt goes; raises `ApiError`, or `Refused`, where there is none."""
        self._failures.append(failure.reason)
        output_tokens = self._progress.output_tokens if self._progress and reply.started else 0
        try:
            return await self._context.placer.retry(placement, output_tokens, failure.unfit)
        except ApiError as error:
            if failure.unfit and failure.refusal is not None:
                raise Refused(failure.refusal) from error
            if reply.started:
                said = failure.said if failure.is_own_word else ""
                raise with_text(engine_lost(), said) from error
            if failure.refusal is not None and len(set(self._failures)) == 1:
                raise Refused(failure.refusal) from error
            if error.code == "engine_failed" and failure.is_own_word:
                with_text(error, failure.said)
            raise

    async def _try_engine(self, reply: Reply, placement: Placement) -> bool:
        """Make one attempt and account for it; whether the engine broke off in mid-answer."""
        if not reply.started:  # what nobody saw does not count
            follows = self._can_continue and placement.instance.takes_fields
            self._progress = progress_of(self._request) if follows else None
        headers = self._forwarded_headers
        if self._trace is not None:
            headers = {**headers, **self._trace.attempt(placement)}
        attempt = Attempt(
            self._request,
            self._request_id,
            headers,
            placement,
            reply,
            self._context.placer.started,
            self._progress,
        )
        try:
            await attempt.run(self._context.engines)
            kept, instance = self._context.placer.kept, placement.instance
            kept.learn(attempt.response_id, instance.config.instance_id)
            return attempt.result.broken
        except asyncio.CancelledError:
            attempt.result.abandoned = True
            raise
        finally:
            attempt.result.ended_unix_s = time.time()
            if self._trace is not None:
                self._trace.attempt_ended(attempt.result)
            self._context.recorder.record(
                self._request, self._request_id, placement, attempt.result
            )
