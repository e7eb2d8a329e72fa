"""Streams of frames to predictors and the tagger, which are opened again whenever they end."""

import asyncio
import logging
from contextlib import suppress
from functools import partial

from google.protobuf.message import DecodeError

from foretell import wire
from foretell.services.process.frames import FrameStream, frames_address, hello_of, open_frames
from foretell.services.process.traffic import Traffic

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_CONNECT_S = 2.0
_LOOK_EVERY_S = 2.5


class Peer:
    """A peer to which there is a stream, or soon another one, from `start` to `close`. One that
    dies, hangs or talks nonsense is called again. Make it in a running event loop."""

    def __init__(self, address: str, traffic: Traffic) -> None:
        """`address` is the peer's own."""
        self._address = frames_address(address)
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._stream: FrameStream | None = None
        self._closed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call it, again and again."""
        self._task = self._loop.create_task(self._run())

    def close(self) -> None:
        """Hang up, once what was sent has left."""
        if self._task is not None:
            self._task.cancel()
        if self._stream is not None:
            self._stream.finish()

    @property
    def is_open(self) -> bool:
        """There is a stream to the peer."""
        return self._stream is not None

    def began(self) -> None:
        """A stream is open: the peer knows who is here."""

    def heard(self, payload: bytes) -> None:
        """The peer has sent a frame; DecodeError or `wire.WireError` for nonsense, which ends the
        stream."""
        raise NotImplementedError

    def broke(self) -> None:
        """The stream has ended."""

    def is_lost(self) -> bool:
        """The peer has been silent for too long: it hangs, or its host is gone, and its name may
        have another address by now."""
        raise NotImplementedError

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            self._closed.clear()
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await open_frames(partial(_Stream, self), self._address, self._traffic)
                began_s = self._loop.time()
                while not self._closed.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_EVERY_S):
                            await self._closed.wait()
                    if self._stream is not None and self.is_lost():
                        self._stream.close()
                if self._loop.time() - began_s > _LONGEST_PAUSE_S:
                    pause_s = _FIRST_PAUSE_S
            except OSError as error:  # TimeoutError is one
                logger.debug("there is no stream to %s: %s", self._address, error)
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)


class _Stream(FrameStream):
    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._peer = peer

    def began(self) -> None:
        self._peer._stream = self
        self.send(hello_of(self._peer._traffic))
        self._peer.began()

    def received(self, payload: bytes) -> None:
        try:
            self._peer.heard(payload)
        except (DecodeError, wire.WireError) as error:
            logger.debug("%s talks nonsense: %s", self._peer._address, error)
            self.close()

    def ended(self) -> None:
        self._peer._stream = None
        self._peer.broke()
        self._peer._closed.set()
