"""Streams of frames to predictors, which are opened again whenever they end."""

import asyncio
import logging
from contextlib import suppress

from google.protobuf.message import DecodeError

from foretell import wire
from foretell.services.process.frames import FrameStream, frames_address, hello_of, open_frames
from foretell.services.process.traffic import Traffic

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_CONNECT_S = 2.0
_LOOK_EVERY_S = 2.5


class Peer(FrameStream):
    """A stream to a peer, which is opened again and again from `start` to `stop`: after an error,
    and when the peer hangs. Make it in a running event loop."""

    def __init__(self, address: str, traffic: Traffic) -> None:
        """`address` is the peer's own."""
        super().__init__()
        self._address = frames_address(address)
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, again and again."""
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Disconnect, once what was sent has left."""
        if self._task is not None:
            self._task.cancel()
        self.finish()

    def heard(self, payload: bytes) -> None:
        """The peer has sent a frame; DecodeError or `wire.WireError` for an invalid one, which ends
        the stream."""
        raise NotImplementedError

    def is_lost(self) -> bool:
        """The peer has been silent for too long: it hangs, or its host is gone, and its name may
        have another address by now."""
        raise NotImplementedError

    def began(self) -> None:
        self.send(hello_of(self._traffic))

    def received(self, payload: bytes) -> None:
        try:
            self.heard(payload)
        except (DecodeError, wire.WireError) as error:
            logger.debug("%s has sent an invalid message: %s", self._address, error)
            self.close()

    def ended(self) -> None:
        self._closed.set()

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            self._closed.clear()
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await open_frames(lambda: self, self._address, self._traffic)
                began_s = self._loop.time()
                while not self._closed.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_EVERY_S):
                            await self._closed.wait()
                    if self.is_lost():
                        self.close()
                if self._loop.time() - began_s > _LONGEST_PAUSE_S:
                    pause_s = _FIRST_PAUSE_S
            except OSError as error:  # TimeoutError is one
                logger.debug("there is no stream to %s: %s", self._address, error)
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
