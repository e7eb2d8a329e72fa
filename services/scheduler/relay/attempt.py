"""One attempt: the request goes to the engine that was chosen, its answer to the client."""

import logging
import time

from services.scheduler.http.asgi import RawHeaders
from services.scheduler.http.errors import ApiError
from services.scheduler.http.parsing import PRIORITY_HEADER, ParsedRequest, for_engine
from services.scheduler.placing.placer import Placement
from services.scheduler.record.result import Result
from services.scheduler.relay.framing import (
    LONGEST_BODY_BYTES,
    Broken,
    End,
    Framing,
    Lines,
    StreamFraming,
    TooLong,
    Usage,
    WholeFraming,
)
from services.scheduler.relay.reply import Reply
from services.scheduler.relay.transport import EngineClient, Unreachable, Upstream

logger = logging.getLogger(__name__)

_RETURNED_HEADERS = (b"content-type", b"retry-after", b"x-foretell-emulated")


class AttemptFailed(Exception):
    """The engine gave nothing that the client could have seen; another one may do better."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """A label for metrics."""


class Attempt:
    """Carries one request to one engine, and the answer back as it comes."""

    def __init__(
        self,
        request: ParsedRequest,
        request_id: str,
        forwarded_headers: dict[str, str],
        placement: Placement,
        reply: Reply,
    ) -> None:
        self.result = Result()
        self._request = request
        self._request_id = request_id
        self._forwarded_headers = forwarded_headers
        self._placement = placement
        self._reply = reply

    async def run(self, engines: EngineClient) -> None:
        """Relay the answer to its end, or to a break after its first token.

        Raises `AttemptFailed` if nothing was sent to the client, and `ApiError` if no engine could
        do better.
        """
        spec = self._placement.spec
        body = for_engine(self._request, spec.request_id, spec.length.expected_tokens)
        path = f"/v1/{self._request.endpoint}"
        headers = self._request_headers()
        try:
            upstream = await engines.post(self._placement.instance, path, body, headers)
        except Unreachable as error:
            raise AttemptFailed(error.reason) from error
        try:
            await self._relay(upstream)
        finally:
            upstream.close()

    async def _relay(self, upstream: Upstream) -> None:
        self.result.status = upstream.status
        # 401 and 403: the engine refuses our key, for which the client is not to blame.
        if upstream.status >= 500 or upstream.status in (401, 403):
            raise AttemptFailed(f"http_{upstream.status}")
        streamed = self._request.stream and upstream.status < 400
        framing: Framing = StreamFraming() if streamed else WholeFraming()
        broken = False
        while not framing.ended:
            for event in await upstream.receive(framing):
                match event:
                    case Lines(data):
                        if not self._reply.started:
                            await self._start_stream(upstream)
                        await self._reply.send(data)
                    case Usage():
                        self._note_usage(event)
                    case End(data, truncated):
                        self.result.truncated = truncated
                        self.result.finished = not broken
                        await self._end(upstream, data, streamed=streamed)
                    case Broken():
                        broken = True
                        self._note_break(event)
                        if framing.ended:
                            await self._tell_break()
                    case TooLong():
                        raise _too_long()

    async def _start_stream(self, upstream: Upstream) -> None:
        self.result.first_byte_unix_s = time.time()
        await self._reply.start(upstream.status, self._response_headers(upstream))

    async def _end(self, upstream: Upstream, data: bytes, *, streamed: bool) -> None:
        if streamed and not self._reply.started:
            await self._start_stream(upstream)
        elif not streamed:
            length = (b"content-length", b"%d" % len(data))
            headers = [*self._response_headers(upstream), length]
            await self._reply.start(upstream.status, headers)
        await self._reply.send(data, last=True)

    def _note_break(self, broken: Broken) -> None:
        """Raise `AttemptFailed` for an answer of which the client has seen nothing."""
        if not self._reply.started:
            raise AttemptFailed(broken.reason)
        logger.warning(
            "%s: %s broke off after %s%d tokens: %s",
            self._request_id,
            self._placement.instance.config.instance_id,
            "" if broken.exact else "at least ",
            broken.tokens_out,
            broken.reason,
        )

    async def _tell_break(self) -> None:
        """End a stream whose engine was lost with an error event of our own."""
        self.result.broken = self.result.abandoned = True
        await self._reply.send(b"\n")  # closes an event that had come as far as its data
        await self._reply.fail(ApiError(502, "the engine failed in mid-answer", code="engine_lost"))

    def _note_usage(self, usage: Usage) -> None:
        self.result.prompt_tokens = usage.prompt_tokens
        self.result.output_tokens = usage.output_tokens
        if usage.cached_tokens is not None:
            self.result.cached_tokens = usage.cached_tokens

    def _request_headers(self) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "x-request-id": self._request_id,
            **self._forwarded_headers,
        }
        if self._placement.spec.priority != self._request.priority:
            headers[PRIORITY_HEADER] = str(self._placement.spec.priority)
        return headers

    def _response_headers(self, upstream: Upstream) -> RawHeaders:
        placement, prediction = self._placement, self._placement.prediction
        headers = [(n, upstream.headers[n]) for n in _RETURNED_HEADERS if n in upstream.headers]
        headers += [
            (b"x-request-id", self._request_id.encode()),
            (b"x-foretell-instance", placement.instance.config.instance_id.encode()),
            (b"x-foretell-policy", placement.policy.encode()),
        ]
        if prediction is not None:
            headers += [
                (b"x-foretell-predicted-ttft-s", b"%.4f" % prediction.ttft_s),
                (b"x-foretell-predicted-e2e-s", b"%.4f" % prediction.e2e_s),
            ]
        return headers


def _too_long() -> ApiError:
    return ApiError(
        502, f"the answer is longer than {LONGEST_BODY_BYTES} bytes", code="answer_too_long"
    )
