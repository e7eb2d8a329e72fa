"""Asks the tagger for better estimates of requests: of those that are placed already, or of those
that wait a moment for it."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import grpc

from foretell import wire
from foretell.model import LengthEstimate
from foretell.services.process import calls
from foretell.services.process.traffic import OPEN, Traffic
from foretell.services.scheduler.placing.peers import Peer
from foretell.v1 import tagger_pb2

logger = logging.getLogger(__name__)

_PACE_S = 0.25
"""Messages leave at most this often where nobody waits for the answer. To ask takes time of
processors that others could use, and what is answered has never been seen to be worth much of it.
"""
_MOST_TOGETHER = 16  # requests in a message
_LOST_S = 10.0  # without an answer for so long, and the stream is given up

_GRPC_OPTIONS = [
    # A tagger that comes back must be noticed within a second, not after gRPC's default 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

Describe = Callable[[], tagger_pb2.TagRequest]


def open_channel(address: str, traffic: Traffic = OPEN) -> grpc.aio.Channel:
    """A channel by which the tagger is taught."""
    return calls.channel(traffic, address, _GRPC_OPTIONS)


class TaggerClient(Peer):
    """Asks about some requests. One message is under way at a time, and then there is another one,
    of the latest requests: a tagger that is slow, since it takes only what processors have left
    over, is asked about few."""

    def __init__(self, address: str, traffic: Traffic = OPEN, wait_s: float = 0.0) -> None:
        """`wait_s`: how long `answer` waits at most; 0: nobody calls it."""
        super().__init__(address, traffic)
        self.wait_s = wait_s
        self._waiting: dict[str, asyncio.Future[LengthEstimate | None]] = {}
        self.listener: Callable[[str, LengthEstimate], None] = lambda key, length: None
        """Gets each request's key with what the length model says of it."""
        self._unsent = deque[tuple[str, Describe]](maxlen=_MOST_TOGETHER)
        self._sent: dict[int, str] = {}  # keys by number, which is the order of sending
        self._sent_s = 0.0
        self._next_number = 0
        self._pacing: asyncio.TimerHandle | None = None

    def ask(self, key: str, describe: Describe) -> None:
        """Ask about a request, unless later ones come before there is time for it. `describe` is
        called when it is sent."""
        if self.is_open:
            self._unsent.append((key, describe))
            self._send_soon()

    async def answer(self, key: str, describe: Describe) -> LengthEstimate | None:
        """Ask about a request, and return what the length model says, if that comes in time. None
        at once where an earlier answer is overdue."""
        self.ask(key, describe)
        is_late = bool(self._sent) and self._sent_s < self._loop.time() - self.wait_s
        if not self.is_open or is_late:
            return None
        answered: asyncio.Future[LengthEstimate | None] = self._loop.create_future()
        self._waiting[key] = answered
        try:
            async with asyncio.timeout(self.wait_s):
                return await answered
        except TimeoutError:
            return None
        finally:
            del self._waiting[key]

    def heard(self, payload: bytes) -> None:
        """The tagger has answered; DecodeError or `wire.WireError` for nonsense."""
        batch = tagger_pb2.EstimateBatch.FromString(payload)
        for number, estimate in wire.estimates_from_proto(batch):
            # The other sources know less than we do.
            self._answered(number, estimate if estimate.source == "model" else None)
        for refusal in batch.refusals:
            logger.debug("tagger: %s", refusal.reason)
            self._answered(refusal.number, None)
        self._send_soon()

    def ended(self) -> None:
        """What was asked is forgotten."""
        super().ended()
        if self._pacing is not None:
            self._pacing.cancel()
            self._pacing = None
        self._unsent.clear()
        self._sent.clear()
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_result(None)

    def is_lost(self) -> bool:
        """An answer is overdue."""
        return bool(self._sent) and self._sent_s < self._loop.time() - _LOST_S

    def _answered(self, number: int, estimate: LengthEstimate | None) -> None:
        key = self._sent.pop(number, None)
        answered = self._waiting.get(key) if key is not None else None
        if answered is not None and not answered.done():
            answered.set_result(estimate)
        elif key is not None and estimate is not None:
            self.listener(key, estimate)

    def _send_soon(self) -> None:
        """What comes until then goes together."""
        if self._unsent and not self._sent and self._pacing is None and self.is_open:
            due_s = 0.0 if self.wait_s else self._sent_s + _PACE_S
            self._pacing = self._loop.call_at(due_s, self._send)

    def _send(self) -> None:
        self._pacing = None
        if not self.is_open:
            return
        first, waiting = self._next_number, list(self._unsent)
        self._unsent.clear()
        self._next_number += len(waiting)
        self._sent = {number: key for number, (key, _) in enumerate(waiting, first)}
        self._sent_s = self._loop.time()
        requests = [describe() for _, describe in waiting]
        message = tagger_pb2.TagBatch(requests=requests, first=first)
        self.send(message.SerializeToString())
