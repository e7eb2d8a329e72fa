"""One request of a gateway: it is placed, its body is sent back, and its end is recorded."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from itertools import chain, islice

from google.protobuf.message import DecodeError

from foretell.answer.judgement import Verdict, judge, lost
from foretell.http1.response import Response
from foretell.openai.errors import (
    CLIENT_CLOSED_REQUEST,
    ApiError,
    internal_error,
    unavailable,
)
from foretell.openai.headers import RANK_HEADER
from foretell.openai.refusals import engines_failed
from foretell.openai.surface import ENDPOINTS
from foretell.services.http.exchange import (
    BODY_DEADLINE_S,
    UNCOUNTED_BYTES,
    body_too_late,
    body_too_long,
    declared_bytes,
    with_room,
)
from foretell.services.process.logs import about
from foretell.services.scheduler.app import App
from foretell.services.scheduler.envoy.addresses import Addresses
from foretell.services.scheduler.envoy.calls import UNKNOWN, CallStream
from foretell.services.scheduler.lifecycle.context import RequestContext
from foretell.services.scheduler.placing.attempt import Attempt
from foretell.services.scheduler.proxy import is_stored
from foretell.v1 import ext_proc_pb2 as pb
from foretell.wire import ext_proc

logger = logging.getLogger(__name__)

_WITHHELD = ("authorization", "proxy-authorization", "x-api-key", "cookie", RANK_HEADER)
_CHUNKS_AT_ONCE = 16
"""Chunks of a body that are sent before other tasks run."""
_DUPLEX = pb.ProtocolConfiguration.FULL_DUPLEX_STREAMED


class PickerExchange:
    """A call of `ExternalProcessor/Process`, which is one HTTP request of the gateway's."""

    def __init__(
        self, stream: CallStream, app: App, addresses: Addresses, authorization: Mapping[str, str]
    ) -> None:
        """`authorization`: the header that engines get in place of the client's."""
        self._stream = stream
        self._app = app
        self._addresses = addresses
        self._authorization = authorization
        self._shared = app.shared
        self._path = ""
        self._life: RequestContext | None = None
        """None before its head has come, and for a request that is not placed."""
        self._subset: frozenset[str] | None = None
        self._duplex_response = False
        self._body = BytesIO()
        self._placing: asyncio.Task[None] | None = None
        self._late: asyncio.TimerHandle | None = None
        """Refuses a body that takes too long."""
        self._status = 0
        self._settled = False

    # Called for what the gateway sends.

    def receive(self, message: bytes) -> None:
        try:
            self._take(pb.ProcessingRequest.FromString(message))
        except ApiError as error:
            self.refuse(error)
        except DecodeError:
            self.lose()
            self._stream.end(UNKNOWN, "this is no ProcessingRequest")
        except Exception:  # the last line of defence, as in the relay
            self._fail()

    def half_close(self) -> None:
        """The gateway sends no more: the answer has ended, or its client has left."""
        self.lose()
        self._stream.end()

    def lose(self) -> None:
        """The gateway has dropped the request, or is done with it."""
        if self._placing is not None:
            self._placing.cancel()
        self._settle(self._status or CLIENT_CLOSED_REQUEST)

    def refuse(self, error: ApiError) -> None:
        """Answer the client with an error, which ends the request."""
        headers = dict(error.headers)
        if self._life is not None:
            headers["x-request-id"] = self._life.request_id
        if error.status in (429, 503) and error.code:
            headers[ext_proc.DROPPED] = error.code
        self._settle(error.status)
        self._reply(replace(error.response(self._path), headers=headers))

    def _fail(self) -> None:
        request_id = self._life.request_id if self._life is not None else ""
        logger.exception("the scheduler failed", extra=about(request_id))
        self.refuse(internal_error())

    def _reply(self, response: Response) -> None:
        self._stream.send(ext_proc.immediate(response))
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
            self._answered(ext_proc.headers_of(request.response_headers))
        elif kind == "response_body":
            again = ext_proc.response_body(request.response_body, duplex=self._duplex_response)
            self._stream.send(again)
        elif kind == "response_trailers":
            self._stream.send(ext_proc.RESPONSE_TRAILERS)

    def _begin(self, request: pb.ProcessingRequest) -> None:
        protocol, most_bytes = request.protocol_config, self._shared.max_body_bytes
        if request.HasField("protocol_config") and protocol.request_body_mode != _DUPLEX:
            logger.error("the gateway must send request bodies in the mode FULL_DUPLEX_STREAMED")
            raise ApiError(500, "the gateway is not configured for this endpoint picker")
        self._duplex_response = protocol.response_body_mode == _DUPLEX
        headers = ext_proc.headers_of(request.request_headers)
        method, path = headers.get(":method", ""), headers.get(":path", "").partition("?")[0]
        if is_stored(path):
            self._path, self._settled = path, True
            keeper = self._send_to_keeper(path, headers)
            self._placing = asyncio.get_running_loop().create_task(keeper)
            return
        if path not in ENDPOINTS or method != "POST":
            self._show(method, path, headers)
            return
        self._path = path
        self._life = RequestContext(self._shared, ENDPOINTS[path], headers)
        self._subset = ext_proc.subset_of(request)
        length_bytes = declared_bytes(headers.get("content-length", ""))
        if length_bytes > most_bytes:
            raise body_too_long(most_bytes)
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(BODY_DEADLINE_S, self.refuse, body_too_late())
        if request.request_headers.end_of_stream:
            self._place(trailers=False)

    def _show(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        self._settled = True
        try:
            if path == "/metrics":  # not for all who can reach the gateway
                raise ApiError(404, f"Not Found: {method} {path}")
            self._reply(self._app.page(method, path, headers))
        except ApiError as error:
            self._reply(error.response())

    async def _send_to_keeper(self, path: str, headers: Mapping[str, str]) -> None:
        own, addresses = self._authorization, self._addresses
        try:
            tenant = self._shared.api_keys.tenant(headers)
            keepers = self._app.stored.keepers(path, tenant.name)
            await addresses.learn(keepers)
            known = [address for each in keepers if (address := addresses.known(each))]
            if not known:
                raise unavailable("the engine that keeps this response is not up", "no_instance")
            withheld = [name for name in _WITHHELD if name not in own]
            self._stream.send(ext_proc.destination(",".join(known), own, withheld))
        except ApiError as error:
            self._reply(error.response(path))
        except Exception:  # the last line of defence, as in the relay
            self._fail()

    def _take_body(self, part: pb.HttpBody) -> None:
        if self._settled:  # refused already, or for a kept response, which needs no body
            if part.end_of_stream and is_stored(self._path):
                self._stream.send(*ext_proc.body_chunks(b"", ends=True))
            return
        body_bytes = self._body.tell() + len(part.body)
        if body_bytes > self._shared.max_body_bytes:
            raise body_too_long(self._shared.max_body_bytes)
        if body_bytes > UNCOUNTED_BYTES and self._life is not None:
            self._life.hold(body_bytes)
            self._body = with_room(self._body)
        self._body.write(part.body)
        if part.end_of_stream:
            self._place(trailers=False)

    # Placing.

    def _place(self, *, trailers: bool) -> None:
        if self._settled or self._placing is not None or self._life is None:
            return
        if self._late is not None:
            self._late.cancel()
        work = self._placed(self._life, trailers=trailers)
        self._placing = asyncio.get_running_loop().create_task(work)

    async def _placed(self, life: RequestContext, *, trailers: bool) -> None:
        try:
            among = self._subset
            if among is not None:
                among = await self._addresses.instances(among)
            self._body.truncate()
            body, self._body = self._body.getvalue(), BytesIO()
            await life.accept(body, among)
            address = await self._address(life, await life.place(recallable=False))
            others = await self._others(life)
            await self._dispatch(life, [address, *others], trailers=trailers)
        except ApiError as error:
            self.refuse(error)
        except Exception:  # the last line of defence, as in the relay
            self._fail()

    async def _address(self, life: RequestContext, attempt: Attempt) -> str:
        """The address of the chosen engine, or of the next; raises `ApiError` if none has one."""
        while True:
            try:
                return await self._addresses.of(attempt.instance)
            except OSError as error:
                attempt = await life.retry(lost("connect"), said=f"it has no address: {error}")

    async def _others(self, life: RequestContext) -> list[str]:
        """Addresses at which the gateway may try again before an answer has begun."""
        assert life.attempt is not None, "others follow the first"
        known, request = list(self._shared.pool.instances.values()), life.request
        chosen = life.attempt.instance
        after = known.index(chosen) + 1 if chosen in known else 0
        fit = (
            each
            for each in chain(known[after:], known[: max(0, after - 1)])
            if each.healthy
            and request.model in each.model_names
            and each.takes_fields == chosen.takes_fields
            and each.config.rank == chosen.config.rank
            and (request.among is None or each.config.instance_id in request.among)
        )
        others = list(islice(fit, life.placer.core.config.max_attempts - 1))
        await self._addresses.learn(others)
        return [address for each in others if (address := self._addresses.known(each))]

    async def _dispatch(
        self, life: RequestContext, addresses: list[str], *, trailers: bool
    ) -> None:
        body = life.body()
        headers = {**life.begin_attempt(), **self._authorization}
        withheld = [name for name in _WITHHELD if name not in headers]
        chunks = ext_proc.body_chunks(body, ends=not trailers)
        first = ext_proc.destination(",".join(addresses), headers, withheld)
        self._stream.send(first, *islice(chunks, _CHUNKS_AT_ONCE))
        while more := list(islice(chunks, _CHUNKS_AT_ONCE)):
            await self._stream.sent()
            self._stream.send(*more)
        life.drop_body()
        if trailers:
            self._stream.send(ext_proc.REQUEST_TRAILERS)

    # The answer and the end.

    def _answered(self, headers: dict[str, str]) -> None:
        life, stated = self._life, headers.get(":status", "")
        status = int(stated) if stated.isascii() and stated.isdecimal() and len(stated) == 3 else 0
        if life is None or life.attempt is None:
            # The gateway's own answer to a request that it did not pass on to here.
            self._status = status
            self._stream.send(ext_proc.response_headers({}))
            return
        if self._settled:
            return
        attempt = self._served(life, life.attempt, headers.get(ext_proc.SERVED, ""))
        judgement = judge(status)
        if judgement.verdict is Verdict.FAULT:
            attempt.status = status if ext_proc.SERVED in headers else 0
            life.failed(judgement if attempt.status else lost("connect"))
            self.refuse(engines_failed(life.placer.core.config.max_attempts))
            return
        if judgement.counts:
            life.failed(judgement)
        self._status = attempt.status = status
        self._stream.send(
            ext_proc.response_headers({"x-request-id": life.request_id, **attempt.headers()})
        )

    def _served(self, life: RequestContext, attempt: Attempt, address: str) -> Attempt:
        """The attempt that is answered: another one if the gateway tried the first in vain."""
        addresses = self._addresses
        served = addresses.instance(address) if address else None
        if served is None or address == addresses.known(attempt.instance):
            return attempt
        life.failed(lost("gateway"))
        return life.sent_elsewhere(served)

    def _settle(self, status: int) -> None:
        """Release what the request holds and record its end; only the first call counts. An answer
        that began counts as whole unless its engine is down: without the answer's body, which a
        gateway need not send here, no more is known."""
        if self._settled:
            return
        self._settled = True
        if self._late is not None:
            self._late.cancel()
        life = self._life
        if life is None:
            return
        if life.is_sent and (attempt := life.attempt) is not None:
            attempt.broken = self._status > 0 and attempt.instance.is_down
            attempt.finished = self._status > 0 and not attempt.broken
            attempt.abandoned = not attempt.finished
            life.end_attempt()
        life.end(status)
