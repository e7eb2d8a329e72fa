"""A client's connection: passes bytes between its transport and `foretell.http1`, with deadlines.

There is no framework between client and engine, because each chunk of each answer passes here.
"""

import asyncio
from math import inf
from typing import Protocol, cast

from foretell.http1.bounds import RemoteProtocolError
from foretell.http1.head import RequestHead
from foretell.http1.protocol import ConnectionState, ServerProtocol
from foretell.http1.response import head_of
from foretell.openai.errors import ApiError
from foretell.services.http.exchange import Exchange

STALL_S = 120.0
"""A client that reads nothing for so long counts as gone."""
_HEAD_DEADLINE_S = 20.0
_IDLE_S = 75.0  # longer than clients and balancers keep a connection, so that they close it
RETIRE_S = 1.0
"""How long an idle connection is kept during shutdown: a request may be on its way."""
_LINGER_S = 5.0
_DRAIN_S = 10.0
_MOST_DRAINED_BYTES = 64 << 20
"""Limits of a body that still comes after its answer; beyond them the connection ends."""
_MOST_UNREAD_BYTES = 1 << 20
"""Bytes that are read and dropped after an invalid request; more end the connection at once."""
_PROBES_S = (0.0, 0.02, 0.08, 1.0, 5.0)
"""Pauses before each probe of a client that has closed its side. If it has left, its host resets
the connection at the first probe, and the next probe notices that."""
_PATIENT_PROBES = 3
"""During the first so many probes, a client that cannot be probed counts as present."""
_IDLE, _DRAINING, _FAILED, _CLOSING = (
    ConnectionState.IDLE,
    ConnectionState.DRAINING,
    ConnectionState.FAILED,
    ConnectionState.CLOSING,
)
"""Global names, because looking up an enumeration's member takes as long as a call."""
_DEAF = (_CLOSING, _FAILED)
_CODES = {400: "http_invalid", 431: "request_too_large"}


class Owner(Protocol):
    """The server, as far as a connection needs it."""

    draining: bool

    def opened(self, connection: "ClientConnection", transport: asyncio.Transport) -> None: ...

    def closed(self, connection: "ClientConnection") -> None: ...

    def begin(self, exchange: Exchange) -> None: ...


class ClientConnection(asyncio.Protocol):
    """A client's connection. Requests on it are answered one after the other."""

    def __init__(self, server: Owner) -> None:
        self.deadline_s = 0.0
        """When the client must have done its next step."""
        self.full = False
        """The client reads more slowly than data is written to it."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._protocol = ServerProtocol()
        self._exchange: Exchange | None = None
        """The one being answered, or already answered while its body still comes."""
        self._head_due = False
        self._held_up = False
        """The application takes a body too slowly."""
        self._paused = False
        self._unread_bytes = 0
        self._unsent_bytes = 0
        self._half_closed = False
        self._probing: asyncio.TimerHandle | None = None

    # --- called by the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._due_in(_HEAD_DEADLINE_S)
        self._server.opened(self, self._transport)

    def data_received(self, data: bytes) -> None:
        if self._protocol.receive(data):
            self._go_on()
            return
        self._unread_bytes += len(data)
        if self._unread_bytes > _MOST_UNREAD_BYTES:
            self.abort()

    def eof_received(self) -> bool:
        """The client sends no more, but may still read. Return whether the transport stays open."""
        assert self._transport is not None
        if self._half_closed:
            return True
        waits = self._exchange is None and self._protocol.held_bytes > 0  # for the client to read
        whole = waits or self._protocol.state in (ConnectionState.ANSWERING, ConnectionState.FAILED)
        if not whole or not self._transport.can_write_eof():  # TLS ends both sides at once
            if self._exchange is not None and not self._exchange.ended:
                self.abort()
            return False
        self._half_closed = True
        self._probe_after(0)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        if self._probing is not None:
            self._probing.cancel()
        if self._exchange is not None:
            self._exchange.lose()

    def pause_writing(self) -> None:
        self.full = True
        self._due_in(STALL_S)
        if self._exchange is not None and self._exchange.on_full is not None:
            self._exchange.on_full()

    def resume_writing(self) -> None:
        self.full = False
        if self._exchange is None:
            self._rest()  # go on with what waited behind the answer
        elif not self._exchange.ended:
            self.deadline_s = inf
            if self._exchange.on_room is not None:
                self._exchange.on_room()

    # --- called by an exchange ---

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)

    def answered(self) -> None:
        """The current exchange has been answered; its body may still be on its way."""
        assert self._exchange is not None
        protocol = self._protocol
        was_failed = protocol.state is _FAILED
        protocol.keep_alive = self._exchange.keep_alive
        protocol.answered()
        if protocol.state is _DRAINING:
            self._due_in(_DRAIN_S)
        elif was_failed:
            self._linger()
        else:
            self._ended()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._exchange is not None:
            self._exchange.lose()

    def pause(self) -> None:
        """Read no more from the client for now."""
        self._held_up = True
        self._set_reading()

    def resume(self) -> None:
        self._held_up = False
        self._set_reading()

    # --- called by the server ---

    def retire(self) -> None:
        """Answer a request that has come, or comes within `RETIRE_S`, and take no more."""
        if self._exchange is None:
            self._due_in(RETIRE_S)
        else:
            self._exchange.keep_alive = False

    def overdue(self) -> None:
        """Handle a missed deadline of the client: extend it if the client reads, or close."""
        assert self._transport is not None
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes and unsent_bytes != self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self._due_in(STALL_S)  # it reads, slowly
        elif unsent_bytes or self._exchange is not None or self._protocol.state in _DEAF:
            self.abort()
        elif self._protocol.head_begun and not self._server.draining:
            self._protocol.close()
            self._refuse(ApiError(408, "the request's head did not arrive in time"))
        else:
            self._protocol.close()
            self._close()

    # --- internal ---

    def _go_on(self) -> None:
        protocol = self._protocol
        try:
            while not (self.full and protocol.state is _IDLE):
                event = protocol.next_event()
                if event is None:
                    break
                if isinstance(event, RequestHead):
                    self._begin(Exchange(self, event))
                    if event.content is not None:
                        break  # the request is whole: what follows waits for its answer
                elif event:
                    self._take(event)
                else:
                    self._take_end()
        except RemoteProtocolError as error:
            self._malformed(error)
        if self._paused or protocol.is_full:
            self._set_reading()
        if self._exchange is None and not self._head_due and protocol.head_begun:
            self._head_due = True
            self._due_in(_HEAD_DEADLINE_S)

    def _begin(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._head_due = False
        self.deadline_s = inf
        if self._server.draining:
            exchange.keep_alive = False
        self._server.begin(exchange)

    def _take(self, data: bytes) -> None:
        assert self._exchange is not None
        self._exchange.take(data)
        if self._exchange.ended and self._exchange.body_bytes > _MOST_DRAINED_BYTES:
            self.abort()

    def _take_end(self) -> None:
        assert self._exchange is not None
        self._exchange.take_end()
        if self._exchange.ended:
            self._ended()

    def _ended(self) -> None:
        self._exchange = None
        if self._protocol.state is _CLOSING:
            self._close()
            return
        self._due_in(_HEAD_DEADLINE_S if self._protocol.head_begun else _IDLE_S)
        self._head_due = self._protocol.head_begun
        if self._half_closed or self._protocol.held_bytes:
            self._rest()

    def _rest(self) -> None:
        """Go on with what has come; close once the client sends no more and has all answers."""
        if self._protocol.held_bytes:
            self._go_on()
        if self._half_closed and not self.full and self._protocol.state is _IDLE:
            self._protocol.close()
            self._close()

    def _malformed(self, error: RemoteProtocolError) -> None:
        refusal = ApiError(error.status, error.message, code=_CODES.get(error.status))
        if self._exchange is None:
            self._refuse(refusal)
        elif self._protocol.state is _FAILED:
            self._exchange.fail(refusal)
        else:
            self._linger()  # it has been answered

    def _refuse(self, error: ApiError) -> None:
        response = error.response()
        head = head_of(response.status, response.all_headers(), b"connection: close\r\n")
        self.send(head + response.body)
        self._linger()

    def _linger(self) -> None:
        """Close, but read on for a while before: if the connection is closed with unread bytes, the
        client may never see the answer."""
        assert self._transport is not None
        self._exchange = None
        self._due_in(_LINGER_S)
        self._held_up = False
        self._set_reading()
        if not self._transport.can_write_eof():  # TLS cannot close one side only
            self._close()
        elif not self._transport.is_closing():
            self._transport.write_eof()

    def _close(self) -> None:
        assert self._transport is not None
        self._due_in(STALL_S)  # the client must read what is unsent
        self._transport.close()

    def _set_reading(self) -> None:
        paused = self._held_up or self._protocol.is_full
        if paused != self._paused and self._transport is not None:
            self._paused = paused
            if self._transport.is_closing() or self._half_closed:
                return
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _probe_after(self, number: int) -> None:
        pause_s = _PROBES_S[min(number, len(_PROBES_S) - 1)]
        self._probing = self._loop.call_later(pause_s, self._probe, number)

    def _probe(self, number: int) -> None:
        """Find out whether a client that has closed its side is still there."""
        exchange = self._exchange
        there = exchange is None or exchange.ended or exchange.probe()
        if not there and number >= _PATIENT_PROBES:
            self.abort()
        else:
            self._probe_after(number + 1)

    def _due_in(self, seconds: float) -> None:
        self.deadline_s = self._loop.time() + seconds
