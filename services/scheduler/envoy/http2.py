"""The server's end of an HTTP/2 connection that carries gRPC calls, on `h2`.

`h2` implements the protocol. This module bounds the work and memory that one peer can cause: the
work of a slice of its data, its cost in all, the data that it has not read, its streams, and the
time until it begins to speak HTTP/2.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError, StreamClosedError
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

from foretell.services.scheduler.envoy.calls import RESOURCE_EXHAUSTED, CallHandler, CallStream
from foretell.services.scheduler.envoy.frames import (
    COST_OF_SMALL,
    EARNED_BY_ANSWER,
    SMALL_BYTES,
    Frames,
)
from foretell.services.scheduler.turns import Turns

logger = logging.getLogger(__name__)

PREFACE_S = 10.0
"""A peer that has not begun to speak HTTP/2 by then is disconnected."""
UNREAD_S = 30.0
"""A peer that reads nothing for so long is disconnected."""
MOST_UNREAD_BYTES = 1 << 20
"""Nothing more is read from a peer while it has more than this still to read."""
_MOST_UNSENT_BYTES = 1 << 18
"""Bytes written to one peer in a turn of the event loop, however large its windows are."""
MOST_PARTIAL_BYTES = 16 << 20
"""Most bytes held of incomplete messages, in all calls of a connection."""
_WINDOW = 1 << 20
_LARGEST_WINDOW = (1 << 31) - 1
_LONGEST_HEADERS = 1 << 16

Open = Callable[[CallStream, dict[str, str]], CallHandler | None]
"""Begins the call of a stream with these request headers; None after it has ended the stream."""


class Http2Connection(asyncio.Protocol):
    """One connection of a gateway, with its concurrent calls."""

    def __init__(
        self,
        open_call: Open,
        turns: Turns,
        connections: set["Http2Connection"],
        most_streams: int = 4096,
    ) -> None:
        """`connections` contains this one while it is open."""
        self._open = open_call
        self._turns = turns
        self._most_streams = most_streams
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._streams: dict[int, CallStream] = {}
        self._frames = Frames()
        self._asked = False
        self._partial_bytes = 0
        self._waiting: dict[int, CallStream] = {}
        """Streams with outgoing data, in the order in which they get the window."""
        self._has_room = False
        """The windows have grown since `_waiting` was last tried."""
        self._is_full = False
        """The peer does not read what it is sent."""
        self._deadline: asyncio.TimerHandle | None = None
        self._flush_planned = False
        self._unsent_bytes = 0
        self.ended = asyncio.Event()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._transport.set_write_buffer_limits(MOST_UNREAD_BYTES)
        self._connections.add(self)
        self._deadline = self._loop.call_later(PREFACE_S, self.abort)
        self._h2.initiate_connection()
        self._h2.update_settings(
            {
                SettingCodes.MAX_CONCURRENT_STREAMS: self._most_streams,
                SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: _LONGEST_HEADERS,
            }
        )
        self._h2.increment_flow_control_window(_LARGEST_WINDOW // 4)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self.ended.set()
        self._wait_no_more()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            self._lose(stream)

    def data_received(self, data: bytes) -> None:
        self._frames.add(data)
        self._go_on()

    def pause_writing(self) -> None:
        """The peer does not read, so nothing is read from it, either."""
        self._is_full = True
        self._wait_no_more()
        self._deadline = self._loop.call_later(UNREAD_S, self.abort)

    def resume_writing(self) -> None:
        self._is_full = False
        self._wait_no_more()
        self._send_all_waiting()
        self._go_on()

    def drain(self) -> None:
        """Take no new calls on this connection; those in progress go on."""
        self._write()
        # A frame made by `h2` itself would end the calls in progress, too.
        last = self._h2.highest_inbound_stream_id
        if self._transport is not None:
            self._transport.write(GoAwayFrame(0, last_stream_id=last).serialize())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, whatever has not been sent."""
        if self._transport is not None:
            self._transport.abort()

    def _wait_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # Turns.

    @property
    def _can_read(self) -> bool:
        return self._frames.waits and not self._is_full and self._is_open

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _go_on(self) -> None:
        if self._can_read and not self._asked:
            self._asked = True
            self._turns.ask(self.read_slice)
        if self._is_open:
            assert self._transport is not None
            if self._asked or self._is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def read_slice(self) -> bool:
        """Read one slice; return whether there is another one."""
        if self._can_read:
            self._flush_planned = True  # whatever is written meanwhile goes out below
            try:
                self._read_slice()
            except ProtocolError as error:
                logger.warning("a gateway broke HTTP/2: %s", error)
                self._flush()
                self.close()
            except Exception:  # the last line of defence: the turns of other peers go on
                logger.exception("the scheduler failed")
                self.abort()
        self._asked = self._can_read
        if not self._asked:
            self._go_on()
        return self._asked

    def _read_slice(self) -> None:
        try:
            data = self._frames.take(len(self._streams))
            if self._frames.credit <= 0:
                raise DenialOfServiceError("it costs more than its calls are worth")
        except ProtocolError as error:
            self._h2.close_connection(error.error_code)
            raise
        for event in self._h2.receive_data(data):
            self._take(event)
        if self._has_room:
            self._frames.earn(-len(self._waiting) // 16)
            self._send_all_waiting()
        self._flush()  # now: if the peer does not read, its next slice must wait

    def _take(self, event: events.Event) -> None:
        match event:
            case events.RequestReceived():
                self._begin(event)
            case events.DataReceived():
                self._data(event)
            case events.StreamEnded():
                self._half_close(event.stream_id or 0)
            case events.StreamReset():
                self._reset(event)
            case events.WindowUpdated():
                self._has_room = True
            case events.RemoteSettingsChanged():
                if not self._is_full:
                    self._wait_no_more()
                self._has_room = True
            case events.ConnectionTerminated():
                if event.error_code != ErrorCodes.NO_ERROR:
                    self.close()

    def _begin(self, event: events.RequestReceived) -> None:
        assert event.stream_id is not None
        if len(self._streams) >= self._most_streams:  # the peer may not have read the settings yet
            self._h2.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
            return
        stream = self._streams[event.stream_id] = CallStream(self, event.stream_id)
        headers: dict[str, str] = {}
        for name, value in event.headers or ():
            headers.setdefault(bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
        stream.call = self._open(stream, headers)

    def _half_close(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.half_closed = True
            if stream.call is not None:
                stream.call.half_close()

    def _data(self, event: events.DataReceived) -> None:
        stream_id, size = event.stream_id or 0, event.flow_controlled_length or 0
        with suppress(StreamClosedError):
            self._h2.acknowledge_received_data(size, stream_id)
        stream = self._streams.get(stream_id)
        if stream is None or not event.data:
            return
        stream.incoming += event.data
        self._partial_bytes += len(event.data)
        self._messages(stream)
        if self._partial_bytes > MOST_PARTIAL_BYTES:
            stream.end(RESOURCE_EXHAUSTED, "too many messages are not whole")

    def _messages(self, stream: CallStream) -> None:
        held_bytes = len(stream.incoming)
        for message in stream.messages():
            self._frames.earn(0 if len(message) >= SMALL_BYTES else -COST_OF_SMALL)
            if self._frames.credit <= 0:
                return  # the next slice ends the connection
            if stream.call is not None:
                stream.call.receive(message)
        if not stream.closed:
            self._partial_bytes -= held_bytes - len(stream.incoming)

    def _reset(self, event: events.StreamReset) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is not None:
            if stream.begun:  # as Envoy ends each call that was answered
                self.earn()
            self._lose(stream)

    # Called by streams.

    def earn(self) -> None:
        self._frames.earn(EARNED_BY_ANSWER)

    def send_headers(
        self, stream: CallStream, headers: list[tuple[str, str]], *, ends: bool
    ) -> None:
        """Write a block of headers; `ends`: it is the last one, and the stream is forgotten."""
        with suppress(ProtocolError):  # the peer has reset it, or the connection is closing
            self._h2.send_headers(stream.id, headers, end_stream=ends)
            if ends and not stream.half_closed:  # the rest of the call is not needed
                self._h2.reset_stream(stream.id, ErrorCodes.NO_ERROR)
        if ends:
            self._forget(stream)
        self._plan_flush()

    def send_waiting(self, stream: CallStream) -> None:
        """Write as much as the windows allow, and the rest when they do."""
        self._waiting[stream.id] = stream
        try:
            while stream.outgoing and not self._is_full and self._unsent_bytes < _MOST_UNSENT_BYTES:
                part = stream.outgoing.popleft()
                room = self._h2.local_flow_control_window(stream.id)
                size = min(len(part), room, self._h2.max_outbound_frame_size)
                if size < len(part):
                    stream.outgoing.appendleft(part[size:])
                if size <= 0:
                    break
                self._h2.send_data(stream.id, bytes(part[:size]))
                self._unsent_bytes += size
        except ProtocolError:
            stream.outgoing.clear()
        if not stream.outgoing:
            del self._waiting[stream.id]
            stream.tell_sent()
        self._plan_flush()

    def _send_all_waiting(self) -> None:
        self._has_room = False
        for stream in list(self._waiting.values()):
            self.send_waiting(stream)

    def _forget(self, stream: CallStream) -> None:
        self._streams.pop(stream.id, None)
        self._waiting.pop(stream.id, None)
        stream.closed = True
        self._partial_bytes -= len(stream.incoming)
        stream.incoming.clear()
        stream.outgoing.clear()
        stream.tell_sent()

    def _lose(self, stream: CallStream) -> None:
        self._forget(stream)
        if stream.call is not None:
            stream.call.lose()

    def _plan_flush(self) -> None:
        """Send all that is written in one turn of the event loop together."""
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write; data beyond the limit of this turn is sent after other tasks have run."""
        self._flush_planned = False
        self._write()
        if self._unsent_bytes >= _MOST_UNSENT_BYTES:
            self._loop.call_soon(self._send_all_waiting)
        self._unsent_bytes = 0

    def _write(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
