"""Receives what one predictor publishes, and reconnects whenever its stream ends."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from google.protobuf.message import DecodeError

from foretell import wire
from foretell.engine.published import SnapshotError
from foretell.engine.snapshot_cache import FollowedEngine
from foretell.latency.tables import NO_TABLES, packed_tables
from foretell.model import RequestSpec
from foretell.services.process.frames import FrameStream, frames_address, hello_of, open_frames
from foretell.services.process.traffic import Traffic
from foretell.v1 import predictor_pb2
from foretell.wire.published import MessageReader

logger = logging.getLogger(__name__)

_LOST_S = 10.0
"""Silence after which the stream is reopened. A message comes every second; without one for so long
the predictor hangs or its host is gone, and its name may have another address by now."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_CONNECT_S = 2.0
_LOOK_EVERY_S = 2.5


class SnapshotStream(FrameStream):
    """One followed predictor. Its stream is reopened whenever it ends, from `start` to `stop`.
    Create it in a running event loop."""

    def __init__(
        self,
        address: str,
        traffic: Traffic,
        engine: FollowedEngine,
        refused: Callable[[str], None] = lambda reason: None,
        shown: Callable[[bool], None] = lambda is_shown: None,
    ) -> None:
        """`address` is the predictor's own. `refused` is called with why a message was refused;
        `shown` with whether there is a snapshot and its stream is open."""
        super().__init__()
        self.engine = engine
        self.unpredicted = ""
        """The predictor's reason why there is no snapshot of the engine; empty: none."""
        self._address = frames_address(address)
        self._traffic = traffic
        self._refused = refused
        self._shown = shown
        self._is_shown = False
        self._reader = MessageReader(packed_tables, NO_TABLES)
        self._heard_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and reconnect whenever the stream ends."""
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Stop following, after everything sent has been written out."""
        if self._task is not None:
            self._task.cancel()
        self.finish()

    def still_open(self, request: RequestSpec, age_s: float) -> None:
        """Called when the stream opens, for each request in progress; it was sent `age_s` ago."""

    def taken_in(self, message: predictor_pb2.Published) -> None:
        """Called with each accepted message, after its snapshot was taken in."""

    def began(self) -> None:
        self.send(hello_of(self._traffic))
        self._reader = MessageReader(packed_tables, NO_TABLES)
        self._heard_s = self._loop.time()
        for request, age_s in self.engine.begin(self._heard_s):
            self.still_open(request, age_s)

    def ended(self) -> None:
        self._closed.set()
        self._show(False)

    def received(self, payload: bytes) -> None:
        self._heard_s = now_s = self._loop.time()
        try:
            message = predictor_pb2.Published.FromString(payload)
            self.engine.hear(self._reader.read(message), now_s)
            self._learn_reason(wire.checked_reason(message.unpredicted))
        except DecodeError:
            self._refused("bytes")
            return
        except (SnapshotError, wire.WireError) as error:
            self._refused(str(error))
            return
        self._show(self.engine.predictor is not None)
        self.taken_in(message)

    def _learn_reason(self, reason: str) -> None:
        if reason and reason != self.unpredicted:
            logger.warning("the engine of %s is not predicted: %s", self._address, reason)
        self.unpredicted = reason

    def _show(self, shown: bool) -> None:
        if shown != self._is_shown:
            self._is_shown = shown
            self._shown(shown)

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
                    if self._loop.time() - self._heard_s > _LOST_S:
                        self.close()
                if self._loop.time() - began_s > _LONGEST_PAUSE_S:
                    pause_s = _FIRST_PAUSE_S
            except OSError as error:  # TimeoutError is one
                logger.debug("there is no stream to %s: %s", self._address, error)
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
