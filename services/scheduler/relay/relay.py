"""Carries one request to an engine and its answer back, byte for byte.

Nothing is sent to the client before the engine's first byte of output is here, so an attempt
that fails before it can be repeated on another engine without the client noticing.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import aiohttp
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foretell.model import RequestSpec
from foretell.telemetry import SchedulerMetrics
from services.scheduler.background import Background
from services.scheduler.http.errors import ApiError, unavailable
from services.scheduler.http.parsing import ParsedRequest, for_engine
from services.scheduler.http.slo import SloUnattainable
from services.scheduler.placing.placement import Placement, Placer
from services.scheduler.placing.pool import Instance, engine_authorization
from services.scheduler.record.outcome import Recorder, Result
from services.scheduler.relay.usage import ERROR_EVENT, read_stream_tail, read_usage

logger = logging.getLogger(__name__)

T = TypeVar("T")

PRIORITY_HEADER = "x-vllm-priority"
FORWARDED_HEADERS = ("traceparent", "tracestate", PRIORITY_HEADER)
"""Of the client's headers, those an engine gets. Its key is for us alone."""
RETURNED_HEADERS = ("content-type", "retry-after", "x-foretell-emulated")
CLIENT_CLOSED_REQUEST = 499
"""What nginx logs for a client that left; it exists in our metrics only."""
_RETRY_PAUSE_S = 0.05
_TAIL_BYTES = 4096  # of a stream, kept to find its usage in
_LONGEST_LINE_BYTES = 1 << 20  # of a stream; what is longer is not kept together


class AttemptFailed(Exception):
    """The engine gave nothing the client could have seen; another may do better."""


@dataclass(slots=True)
class Progress:
    """How many requests this replica serves, and has taken."""

    now: int = 0
    """Admitted, their bodies perhaps still on the way, and not yet answered in full."""
    total: int = 0
    """Found valid."""


@dataclass(frozen=True, slots=True)
class RelayContext:
    """What every relay of this replica shares."""

    client: aiohttp.ClientSession
    placer: Placer
    recorder: Recorder
    metrics: SchedulerMetrics
    background: Background
    progress: Progress
    max_attempts: int
    engine_api_key: str


@dataclass(slots=True)
class _Exchange:
    """The state of one request on its way."""

    send: Send
    started: bool = False
    """The response has begun: from here on nothing can be repeated."""
    avoid: list[Instance] = field(default_factory=list)
    placement: Placement | None = None
    status: int = 0
    """What the client got, or 499 when it left before."""


class Relay(Response):
    """The ASGI response that places, forwards, retries and relays."""

    def __init__(
        self,
        context: RelayContext,
        request: ParsedRequest,
        request_id: str,
        headers: dict[str, str],
    ) -> None:
        super().__init__()
        self._context = context
        self._request = request
        self._request_id = request_id
        self._forward = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(send)
        self._context.progress.total += 1
        work = asyncio.create_task(self._serve(exchange))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                exchange.status = CLIENT_CLOSED_REQUEST
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            self._end(exchange)

    def _end(self, exchange: _Exchange) -> None:
        self._context.progress.now -= 1
        placement = exchange.placement
        self._context.metrics.requests.labels(
            self._request.model,
            placement.instance.config.instance_id if placement else "",
            placement.policy if placement else "",
            str(exchange.status),
        ).inc()

    async def _serve(self, exchange: _Exchange) -> None:
        try:
            spec = await self._context.placer.describe(self._request, self._request_id)
            await self._attempts(exchange, spec)
        except ApiError as error:
            if isinstance(error, SloUnattainable):
                self._context.recorder.record_rejection(self._request, self._request_id, error)
            await self._send_error(exchange, error)
        except Exception:
            # The last line of defence: a bug of ours must still end as an answer.
            logger.exception("request %s failed", self._request_id)
            await self._send_error(
                exchange, ApiError(500, "the scheduler failed; see its log", code="internal_error")
            )

    async def _attempts(self, exchange: _Exchange, spec: RequestSpec) -> None:
        context, arrived_s = self._context, time.monotonic()
        for attempt in range(1, context.max_attempts + 1):
            # An id of its own: a failed attempt's release must not touch its successor's
            # reservation, and clients may use one X-Request-Id for many requests.
            spec = replace(spec, request_id=uuid.uuid4().hex)
            placement = await context.placer.place(self._request, spec, exchange.avoid, arrived_s)
            exchange.placement = placement
            try:
                await self._attempt(exchange, placement)
            except AttemptFailed as failure:
                instance = placement.instance
                reason = str(failure)
                logger.warning(
                    "%s: attempt %d on %s failed: %s",
                    self._request_id,
                    attempt,
                    instance.config.instance_id,
                    reason,
                )
                context.metrics.retries.labels(instance.config.instance_id, reason).inc()
                context.placer.pool.suspect(instance)
                exchange.avoid.append(instance)
                await asyncio.sleep(_RETRY_PAUSE_S * attempt)
            else:
                return
        raise unavailable(
            f"the engines that were tried ({context.max_attempts}) failed before a first token",
            "engine_failed",
        )

    async def _attempt(self, exchange: _Exchange, placement: Placement) -> None:
        result = Result()
        instance = placement.instance
        try:
            await self._exchange(exchange, placement, result)
        except asyncio.CancelledError:
            result.abandoned = True
            raise
        finally:
            instance.outstanding -= 1
            self._context.placer.turns.news()
            result.ended_unix_s = time.time()
            self._context.background.spawn(
                self._context.recorder.record(self._request, self._request_id, placement, result)
            )

    async def _exchange(self, exchange: _Exchange, placement: Placement, result: Result) -> None:
        instance = placement.instance
        opening = asyncio.create_task(self._open(placement))
        try:
            upstream = await _or_down(instance, opening)
            result.status = upstream.status
            # 401 and 403: the engine refuses our key, which is no fault of the client's.
            if upstream.status >= 500 or upstream.status in (401, 403):
                raise AttemptFailed(f"http_{upstream.status}")
            exchange.status = upstream.status
            if self._request.stream and upstream.status < 400:
                await self._relay_stream(exchange, placement, upstream, result)
            else:
                await self._relay_whole(exchange, placement, upstream, result)
        finally:
            _close(opening)

    async def _open(self, placement: Placement) -> aiohttp.ClientResponse:
        """Send the request; returns once the engine's headers are here."""
        context, spec = self._context, placement.spec
        headers = {
            "content-type": "application/json",
            "x-request-id": self._request_id,
            **self._forward,
            **engine_authorization(context.engine_api_key),
        }
        if spec.priority != self._request.priority:
            headers[PRIORITY_HEADER] = str(spec.priority)
        return await context.client.post(
            f"{placement.instance.config.url}/v1/{self._request.endpoint}",
            data=for_engine(self._request, spec.request_id, spec.length.expected_tokens),
            headers=headers,
            allow_redirects=False,
        )

    async def _relay_whole(
        self,
        exchange: _Exchange,
        placement: Placement,
        upstream: aiohttp.ClientResponse,
        result: Result,
    ) -> None:
        body = await _or_down(placement.instance, upstream.read())
        result.finished = True
        if upstream.status < 400:
            read_usage(body, result)
        await self._start(exchange, placement, upstream, [(b"content-length", b"%d" % len(body))])
        await exchange.send({"type": "http.response.body", "body": body})

    async def _relay_stream(
        self,
        exchange: _Exchange,
        placement: Placement,
        upstream: aiohttp.ClientResponse,
        result: Result,
    ) -> None:
        chunk = await _or_down(placement.instance, _first_line(upstream.content))
        if chunk.startswith(ERROR_EVENT):
            raise AttemptFailed("error_event")  # vLLM's engine died behind its living HTTP server
        result.first_byte_unix_s = time.time()
        tail = held = b""
        await self._start(exchange, placement, upstream, [])
        watch = asyncio.create_task(_close_when_down(placement.instance, upstream))
        try:
            while chunk:
                lines, held = _whole_lines(held + chunk)
                if lines:
                    tail = (tail + lines)[-_TAIL_BYTES:]
                    await exchange.send(
                        {"type": "http.response.body", "body": lines, "more_body": True}
                    )
                chunk = await upstream.content.readany()
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("%s: the engine broke off: %r", self._request_id, error)
            self._context.placer.pool.suspect(placement.instance)
            exchange.status = 502
            result.abandoned = True
            lost = ApiError(502, "the engine failed in mid-answer", code="engine_lost")
            # The line end closes an event that had come as far as its data.
            await exchange.send({"type": "http.response.body", "body": b"\n" + lost.sse_event()})
            return
        finally:
            watch.cancel()
        result.finished = True
        read_stream_tail(tail + held, result)
        await exchange.send({"type": "http.response.body", "body": held})

    async def _start(
        self,
        exchange: _Exchange,
        placement: Placement,
        upstream: aiohttp.ClientResponse,
        extra: list[tuple[bytes, bytes]],
    ) -> None:
        headers = [
            (name.encode(), upstream.headers[name].encode())
            for name in RETURNED_HEADERS
            if name in upstream.headers
        ]
        headers += [(k.encode(), v.encode()) for k, v in self._own_headers(placement).items()]
        exchange.started = True
        await exchange.send(
            {
                "type": "http.response.start",
                "status": upstream.status,
                "headers": headers + extra,
            }
        )

    def _own_headers(self, placement: Placement) -> dict[str, str]:
        headers = {
            "x-request-id": self._request_id,
            "x-foretell-instance": placement.instance.config.instance_id,
            "x-foretell-policy": placement.policy,
        }
        if placement.prediction is not None:
            headers["x-foretell-predicted-ttft-s"] = f"{placement.prediction.ttft_s:.4f}"
            headers["x-foretell-predicted-e2e-s"] = f"{placement.prediction.e2e_s:.4f}"
        return headers

    async def _send_error(self, exchange: _Exchange, error: ApiError) -> None:
        exchange.status = error.status
        if exchange.started:
            await exchange.send({"type": "http.response.body", "body": error.sse_event()})
            return
        response = error.response()
        response.headers["x-request-id"] = self._request_id
        exchange.started = True
        await exchange.send(
            {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            }
        )
        await exchange.send({"type": "http.response.body", "body": bytes(response.body)})


async def _or_down(instance: Instance, work: Awaitable[T]) -> T:
    """`work`'s result, or `AttemptFailed` if it breaks or the engine stops answering probes."""
    task = asyncio.ensure_future(work)
    down = asyncio.create_task(instance.down.wait())
    try:
        await asyncio.wait({task, down}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise AttemptFailed("engine_down")
        return task.result()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise AttemptFailed(_reason(error)) from error
    finally:
        down.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _reason(error: Exception) -> str:
    """What went wrong, as a metric's label."""
    if isinstance(error, TimeoutError):
        return "timeout"
    return "connect" if isinstance(error, aiohttp.ClientConnectorError) else "connection_lost"


def _close(opening: asyncio.Task[aiohttp.ClientResponse]) -> None:
    """End the exchange with the engine, even if the client left just as its headers came.

    A connection whose answer was read to its end goes back to the pool; any other is closed,
    which tells the engine to stop generating.
    """
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def _close_when_down(instance: Instance, upstream: aiohttp.ClientResponse) -> None:
    """Break a stream off whose engine no longer answers probes: the reader must not wait on."""
    await instance.down.wait()
    upstream.close()


async def _first_line(content: aiohttp.StreamReader) -> bytes:
    """What came up to and with the first whole line, which tells an answer from an error."""
    head = b""
    while chunk := await content.readany():
        head += chunk
        if b"\n" in chunk or len(head) > _LONGEST_LINE_BYTES:
            break
    if not head:
        raise AttemptFailed("empty_stream")
    return head


def _whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """Split after the last line end.

    If the engine dies within a line, the client must not have seen its beginning: no event could
    follow it.
    """
    end = data.rfind(b"\n") + 1
    if len(data) - end > _LONGEST_LINE_BYTES:
        end = len(data)
    return data[:end], data[end:]


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
