"""One request as a gateway tells it: it is placed, its body goes back, its end is accounted for."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from google.protobuf.message import DecodeError

from foretell.services.process.logs import about
from foretell.services.scheduler.api.errors import CLIENT_CLOSED_REQUEST, ApiError, unavailable
from foretell.services.scheduler.api.parsing import PRIORITY_HEADER, ParsedRequest, for_engine
from foretell.services.scheduler.api.slo import NO_TERMS, SloUnattainable, terms_of
from foretell.services.scheduler.api.surface import ENDPOINTS
from foretell.services.scheduler.app import App, Replica
from foretell.services.scheduler.http.limits import body_too_long, declared_bytes
from foretell.services.scheduler.http1.response import Response
from foretell.services.scheduler.picker import messages
from foretell.services.scheduler.picker.addresses import Addresses
from foretell.services.scheduler.picker.http2 import UNKNOWN, Stream
from foretell.services.scheduler.placing.kept import response_id
from foretell.services.scheduler.placing.placement import Placement
from foretell.services.scheduler.proxy.stored import is_stored
from foretell.services.scheduler.record.result import Result
from foretell.services.scheduler.tenants.accepting import accepted, request_id_of
from foretell.services.scheduler.tenants.quota import NOBODY, Grant
from foretell.v1 import ext_proc_pb2 as pb

logger = logging.getLogger(__name__)

_CREDENTIALS = ("authorization", "proxy-authorization", "x-api-key", "cookie")
"""Headers of clients that no engine gets."""
_CHUNKS_AT_ONCE = 16
"""Of a body; then others get their turn."""
_DUPLEX = pb.ProtocolConfiguration.FULL_DUPLEX_STREAMED


@dataclass(frozen=True, slots=True)
class PickerContext:
    """What all requests of this replica share."""

    app: App
    replica: Replica
    addresses: Addresses
    authorization: Mapping[str, str]
    """The header that engines want, if any."""
    arriving: set["Exchange"] = field(default_factory=set)
    """Those whose bodies are not whole."""


class Exchange:
    """A call of `ExternalProcessor/Process`, which is one HTTP request of the gateway's."""

    def __init__(self, stream: Stream, context: PickerContext) -> None:
        self.began_s = time.monotonic()
        self._stream = stream
        self._context = context
        self._replica = context.replica
        self._held = ExitStack()
        """The request's place among those in progress."""
        self._endpoint = ENDPOINTS["/v1/completions"]
        self._headers: dict[str, str] = {}
        self._tenant = NOBODY
        self._grant: Grant | None = None
        self._terms = NO_TERMS
        self._subset: frozenset[str] | None = None
        self._duplex_response = False
        self._body = bytearray()
        self._placing: asyncio.Task[None] | None = None
        self._request: ParsedRequest | None = None
        self._request_id = ""
        self._placement: Placement | None = None
        self._result = Result()
        self._settled = False

    # What the gateway says.

    def receive(self, message: bytes) -> None:
        """Take the next message."""
        try:
            self._take(pb.ProcessingRequest.FromString(message))
        except ApiError as error:
            self.refuse(error)
        except DecodeError:
            self.lose()
            self._stream.end(UNKNOWN, "this is no ProcessingRequest")
        except Exception:  # the last line of defence, as in the relay
            logger.exception("the scheduler failed", extra=about(self._request_id))
            self.refuse(_defect())

    def half_close(self) -> None:
        """The gateway has no more to say: the answer has ended, or nobody waits for it."""
        self.lose()
        self._stream.end()

    def lose(self) -> None:
        """The gateway has dropped the request, or said all of it."""
        if self._placing is not None:
            self._placing.cancel()
        self._settle(self._result.status or CLIENT_CLOSED_REQUEST)

    def refuse(self, error: ApiError) -> None:
        """Answer the client with an error, which ends the request."""
        if isinstance(error, SloUnattainable) and self._request is not None:
            self._replica.relay.recorder.record_rejection(self._request, self._request_id, error)
        headers = dict(error.headers)
        if self._request_id:
            headers["x-request-id"] = self._request_id
        if error.status in (429, 503) and error.code:
            headers[messages.DROPPED] = error.code
        self._settle(error.status)
        self._reply(replace(error.response(self._endpoint.path), headers=headers))

    def _reply(self, response: Response) -> None:
        self._stream.send(messages.immediate(response))
        self._stream.end()

    def _take(self, request: pb.ProcessingRequest) -> None:
        kind = request.WhichOneof("request")
        if kind == "request_headers":
            self._begin(request)
        elif kind == "request_body":
            self._take_body(request.request_body)
        elif kind == "request_trailers":
            self._place(trailers=True)
        elif kind == "response_headers":
            self._answered(messages.headers_of(request.response_headers))
        elif kind == "response_body":
            again = messages.response_body(request.response_body, duplex=self._duplex_response)
            self._stream.send(again)
        elif kind == "response_trailers":
            self._stream.send(messages.RESPONSE_TRAILERS)

    def _begin(self, request: pb.ProcessingRequest) -> None:
        """Refuse what its headers are reason enough to refuse."""
        replica, protocol = self._replica, request.protocol_config
        if request.HasField("protocol_config") and protocol.request_body_mode != _DUPLEX:
            logger.error("the gateway must send request bodies in the mode FULL_DUPLEX_STREAMED")
            raise ApiError(500, "the gateway is not configured for this endpoint picker")
        self._duplex_response = protocol.response_body_mode == _DUPLEX
        headers = self._headers = messages.headers_of(request.request_headers)
        method, path = headers.get(":method", ""), headers.get(":path", "").partition("?")[0]
        if is_stored(path):
            self._settled = True
            self._start(self._send_to_keeper(path))
            return
        if path not in ENDPOINTS or method != "POST":
            self._show(method, path)
            return
        self._endpoint = ENDPOINTS[path]
        self._tenant = replica.api_keys.tenant(headers)
        self._held.enter_context(replica.in_progress.place(self._tenant.name))
        self._grant = self._held.enter_context(self._tenant.place())
        self._request_id = request_id_of(headers)
        self._terms = terms_of(headers, replica.terms)
        self._subset = messages.subset_of(request)
        if declared_bytes(headers.get("content-length", "")) > replica.max_body_bytes:
            raise body_too_long(replica.max_body_bytes)
        self._context.arriving.add(self)
        if request.request_headers.end_of_stream:
            self._place(trailers=False)

    def _show(self, method: str, path: str) -> None:
        """Answer a request that generates nothing."""
        self._settled = True
        try:
            if path == "/metrics":  # not for whoever can reach the gateway
                raise ApiError(404, f"Not Found: {method} {path}")
            self._reply(self._context.app.page(method, path, self._headers))
        except ApiError as error:
            self._reply(error.response())

    async def _send_to_keeper(self, path: str) -> None:
        """Send a request about a response where that is kept, as far as it is known."""
        headers, addresses = self._context.authorization, self._context.addresses
        self._replica.api_keys.tenant(self._headers)
        keepers = self._replica.stored.keepers(path)
        await addresses.learn(keepers)
        known = [address for each in keepers if (address := addresses.known(each))]
        if not known:
            raise unavailable("the engine that keeps this response is not up", "no_instance")
        withheld = [name for name in _CREDENTIALS if name not in headers]
        self._stream.send(messages.destination(",".join(known), headers, withheld))

    def _take_body(self, part: pb.HttpBody) -> None:
        if self._settled:  # refused already, or about what is kept, where no body matters
            if part.end_of_stream and is_stored(self._headers.get(":path", "")):
                self._stream.send(*messages.body_chunks(b"", ends=True))
            return
        self._body += part.body
        if len(self._body) > self._replica.max_body_bytes:
            raise body_too_long(self._replica.max_body_bytes)
        if part.end_of_stream:
            self._place(trailers=False)

    # Placing.

    def _place(self, *, trailers: bool) -> None:
        if self._settled or self._placing is not None:
            return
        self._context.arriving.discard(self)
        self._start(self._placed(trailers=trailers))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._placing = asyncio.get_running_loop().create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except ApiError as error:
            self.refuse(error)
        except Exception:  # the last line of defence, as in the relay
            logger.exception("the scheduler failed", extra=about(self._request_id))
            self.refuse(_defect())

    async def _placed(self, *, trailers: bool) -> None:
        """Place the request and send it on its way; raises `ApiError`."""
        request = self._request = await self._accepted()
        self._replica.accepted_total += 1
        address = await self._address(request)
        others = await self._others(request)
        await self._dispatch(request, [address, *others], trailers=trailers)

    async def _accepted(self) -> ParsedRequest:
        request = await accepted(
            self._endpoint,
            self._headers,
            bytes(self._body),
            tenant=self._tenant,
            grant=self._grant,
            terms=self._terms,
            serves=self._replica.pool.may_serve,
            only=self._replica.pool.only_model,
        )
        if self._subset is None:
            return request
        return replace(request, among=await self._context.addresses.instances(self._subset))

    async def _address(self, request: ParsedRequest) -> str:
        """The address of the engine that is chosen; raises `ApiError` if none is."""
        placer = self._replica.relay.placer
        placement = await placer.place(request, self._request_id, recallable=False)
        while True:
            self._placement = placement
            try:
                return await self._context.addresses.of(placement.instance)
            except OSError as error:
                instance_id = placement.instance.config.instance_id
                logger.warning(
                    "%s has no address: %s", instance_id, error, extra=about(self._request_id)
                )
                self._replica.relay.metrics.retries.labels(instance_id, "connect").inc()
                self._placement = None  # the retry ends it if it raises
                placement = await placer.retry(placement)

    async def _others(self, request: ParsedRequest) -> list[str]:
        """Where the gateway may try again before anything of an answer has come."""
        placement = self._placement
        assert placement is not None, "retries follow a placement"
        known = list(self._replica.pool.instances.values())
        after = known.index(placement.instance) + 1 if placement.instance in known else 0
        fit = (
            each
            for each in chain(known[after:], known[: max(0, after - 1)])
            if each.healthy
            and request.model in each.model_names
            and (request.among is None or each.config.instance_id in request.among)
        )
        others = list(islice(fit, self._replica.relay.placer.core.config.max_attempts - 1))
        await self._context.addresses.learn(others)
        return [address for each in others if (address := self._context.addresses.known(each))]

    async def _dispatch(
        self, request: ParsedRequest, addresses: list[str], *, trailers: bool
    ) -> None:
        placement = self._placement
        assert placement is not None, "a request was sent without a placement"
        spec = placement.spec
        body = for_engine(
            request,
            spec.request_id,
            spec.length.expected_tokens,
            response_id=response_id(request, placement.instance.config.instance_id),
        )
        headers = {"x-request-id": self._request_id, **self._context.authorization}
        if spec.priority != request.priority:
            headers[PRIORITY_HEADER] = str(spec.priority)
        withheld = [name for name in _CREDENTIALS if name not in headers]
        self._body.clear()
        chunks = messages.body_chunks(body, ends=not trailers)
        first = messages.destination(",".join(addresses), headers, withheld)
        self._stream.send(first, *islice(chunks, _CHUNKS_AT_ONCE))
        while more := list(islice(chunks, _CHUNKS_AT_ONCE)):
            await asyncio.sleep(0)
            self._stream.send(*more)
        if trailers:
            self._stream.send(messages.REQUEST_TRAILERS)

    # The answer and the end.

    def _answered(self, headers: dict[str, str]) -> None:
        """The engine has answered, or the gateway in its place."""
        placement, told = self._placement, headers.get(":status", "")
        status = int(told) if told.isascii() and told.isdecimal() and len(told) == 3 else 0
        if placement is None:  # the gateway's own answer, to what it did not let through to here
            self._result.status = status
            self._stream.send(messages.response_headers({}))
            return
        if self._settled:
            return
        self._note_served(placement, headers.get(messages.SERVED, ""))
        # 401 and 403: the engine refuses our key, for which the client is not to blame.
        if status >= 500 or status in (401, 403):
            reason = f"http_{status}" if messages.SERVED in headers else "connect"
            instance_id = placement.instance.config.instance_id
            self._replica.relay.metrics.retries.labels(instance_id, reason).inc()
            tried = self._replica.relay.placer.core.config.max_attempts
            text = f"the engines that were tried ({tried}) failed before a first token"
            self.refuse(unavailable(text, "engine_failed"))
            return
        self._result.status = status
        self._stream.send(messages.response_headers(self._told()))

    def _note_served(self, placement: Placement, address: str) -> None:
        """Account for another engine's answer: the gateway tried the chosen one in vain."""
        served = self._context.addresses.instance(address) if address else None
        if served is None or served is placement.instance:
            return
        instance_id = placement.instance.config.instance_id
        self._replica.relay.metrics.retries.labels(instance_id, "gateway").inc()
        self._record(placement, Result(ended_unix_s=time.time()))
        # Its lease stays where it was: the answer's end gives it back.
        attempt = placement.attempt + 1
        self._placement = replace(placement, instance=served, prediction=None, attempt=attempt)
        self._replica.relay.placer.sent_elsewhere(self._placement)

    def _told(self) -> dict[str, str]:
        """What the client is told in the headers of its answer."""
        assert self._placement is not None
        return {"x-request-id": self._request_id, **self._placement.headers()}

    def _settle(self, status: int) -> None:
        """Give everything back and account for the request; only the first end counts.

        An answer that began counts as whole unless its engine is down: a gateway that does not
        send its body here cannot say more.
        """
        if self._settled:
            return
        self._settled = True
        self._context.arriving.discard(self)
        self._held.close()
        placement, relay, result = self._placement, self._replica.relay, self._result
        if placement is not None:
            result.broken = result.status > 0 and placement.instance.down.is_set()
            result.finished = result.status > 0 and not result.broken
            result.abandoned = not result.finished
            result.ended_unix_s = time.time()
            relay.placer.end(placement, broken=result.broken, answered=result.finished)
            self._record(placement, result)
        model = self._request.model if self._request else ""
        instance_id = placement.instance.config.instance_id if placement else ""
        policy = placement.policy if placement else ""
        relay.metrics.requests.labels(model, instance_id, policy, str(status)).inc()

    def _record(self, placement: Placement, result: Result) -> None:
        assert self._request is not None, "only what was understood is placed"
        relay = self._replica.relay
        relay.recorder.record(self._request, self._request_id, placement, result)


def _defect() -> ApiError:
    return ApiError(500, "the scheduler failed; see its log", code="internal_error")
