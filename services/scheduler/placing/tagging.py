"""Asks the tagger for better estimates of requests that are placed already."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from google.protobuf.message import DecodeError

from foretell import wire
from foretell.model import LengthEstimate
from foretell.services.process.frames import FrameStream, frames_address, hello_of, open_frames
from foretell.services.process.traffic import OPEN, Traffic
from foretell.v1 import tagger_pb2

logger = logging.getLogger(__name__)

_PACE_S = 0.25
"""Messages leave at most this often. To ask takes time of processors that others could use, and
what is answered has never been seen to be worth much of it."""
_MOST_TOGETHER = 16  # requests in a message
_LOST_S = 10.0  # without an answer for so long, and the stream is given up
_PAUSE_S = 0.2  # before the next one
_CONNECT_S = 1.0

Describe = Callable[[], tagger_pb2.TagRequest]


class TaggerClient:
    """Asks about some requests, and nobody waits for the answers. One message is under way at a
    time, and then there is another one, of the latest requests: a tagger that is slow, since it
    takes only what processors have left over, is asked about few. Make it in a running event loop;
    `close` ends it. A tagger that dies, hangs or talks nonsense is called again."""

    def __init__(self, address: str, traffic: Traffic = OPEN) -> None:
        """`address` is the tagger's own."""
        self.listener: Callable[[str, LengthEstimate], None] = lambda key, length: None
        """Gets each request's key with what the length model says of it."""
        self._address = frames_address(address)
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._unsent = deque[tuple[str, Describe]](maxlen=_MOST_TOGETHER)
        self._sent: dict[int, str] = {}  # keys by number, which is the order of sending
        self._sent_s = 0.0
        self._next_number = 0
        self._stream: FrameStream | None = None
        self._pacing: asyncio.TimerHandle | None = None
        self._task = self._loop.create_task(self._run())

    def ask(self, key: str, describe: Describe) -> None:
        """Ask about a request, unless later ones come before there is time for it. `describe` is
        called when it is sent."""
        if self._stream is not None:
            self._unsent.append((key, describe))
            self._send_soon()

    async def close(self) -> None:
        """Hang up."""
        self._task.cancel()
        await asyncio.wait({self._task})

    def heard(self, payload: bytes) -> None:
        """The tagger has answered; DecodeError or `wire.WireError` for nonsense."""
        batch = tagger_pb2.EstimateBatch.FromString(payload)
        for number, estimate in wire.estimates_from_proto(batch):
            key = self._sent.pop(number, None)
            if key is not None and estimate.source == "model":  # the others know less than we do
                self.listener(key, estimate)
        for refusal in batch.refusals:
            logger.debug("tagger: %s", refusal.reason)
            self._sent.pop(refusal.number, None)
        self._send_soon()

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._talk()
                except OSError as error:  # TimeoutError is one
                    logger.debug("tagger: %s", error)
                await asyncio.sleep(_PAUSE_S)
        except Exception:  # a defect of ours: requests go on without the tagger
            logger.exception("asking the tagger failed")

    async def _talk(self) -> None:
        """Until the stream ends or the tagger hangs; OSError where there is no stream."""
        over = asyncio.Event()
        async with asyncio.timeout(_CONNECT_S):
            stream = await open_frames(lambda: _Stream(self, over), self._address, self._traffic)
        try:
            stream.send(hello_of(self._traffic))
            self._stream = stream
            while not over.is_set() and not self._is_lost():
                try:
                    async with asyncio.timeout(_LOST_S / 4):
                        await over.wait()
                except TimeoutError:
                    continue
        finally:
            self._stream = None
            if self._pacing is not None:
                self._pacing.cancel()
                self._pacing = None
            self._unsent.clear()
            self._sent.clear()
            stream.close()

    def _is_lost(self) -> bool:
        """Whether an answer is overdue: the tagger hangs, or its host is gone."""
        return bool(self._sent) and self._sent_s < self._loop.time() - _LOST_S

    def _send_soon(self) -> None:
        """What comes within the next moment goes together."""
        if self._unsent and not self._sent and self._pacing is None and self._stream is not None:
            self._pacing = self._loop.call_later(_PACE_S, self._send)

    def _send(self) -> None:
        self._pacing = None
        if self._stream is None:
            return
        first, waiting = self._next_number, list(self._unsent)
        self._unsent.clear()
        self._next_number += len(waiting)
        self._sent = {number: key for number, (key, _) in enumerate(waiting, first)}
        self._sent_s = self._loop.time()
        requests = [describe() for _, describe in waiting]
        message = tagger_pb2.TagBatch(requests=requests, first=first)
        self._stream.send(message.SerializeToString())


class _Stream(FrameStream):
    def __init__(self, client: TaggerClient, over: asyncio.Event) -> None:
        super().__init__()
        self._client = client
        self._over = over

    def received(self, payload: bytes) -> None:
        try:
            self._client.heard(payload)
        except (DecodeError, wire.WireError) as error:
            logger.debug("tagger: %s", error)
            self.close()

    def ended(self) -> None:
        self._over.set()
