"""Asks the tagger for many estimates over one stream."""

import asyncio
import logging
from collections import deque

from google.protobuf.message import DecodeError

from foretell import wire
from foretell.model import LengthEstimate
from foretell.v1 import tagger_pb2
from services.process.frames import FrameStream, frames_address, hello_of, open_frames
from services.process.traffic import OPEN, Traffic
from services.scheduler.placing.peers import NoAnswer

logger = logging.getLogger(__name__)

_PACE_S = 0.005
"""Messages leave at most this often: reading two prompts together costs less than one by one."""
_MOST_TOGETHER = 64  # requests in a message
_MOST_WAITING = 1024  # requests without an answer; a hung tagger must not take memory
_LOST_S = 1.0  # without an answer for so long, and the stream is given up
_PAUSE_S = 0.2  # before the next one
_CONNECT_S = 1.0


class _Waiting:
    """A request without an answer."""

    __slots__ = ("answer", "asked_s", "request")

    def __init__(
        self,
        request: tagger_pb2.TagRequest,
        answer: asyncio.Future[LengthEstimate | None],
        asked_s: float,
    ) -> None:
        self.request = request
        self.answer = answer
        self.asked_s = asked_s


class TaggerClient:
    """Gathers requests into messages, and matches estimates to them by their numbers.

    Make it in a running event loop; `close` ends it. A tagger that dies, hangs or talks nonsense
    fails those who wait for it, and is called again.
    """

    def __init__(self, address: str, within_s: float, traffic: Traffic = OPEN) -> None:
        """`address` is the tagger's own. `within_s`: how long the tagger may take to read a request
        well. What it could not read by then it estimates with less effort; that, too, may come
        late."""
        self._address = frames_address(address)
        self._traffic = traffic
        self._within_s = within_s
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[_Waiting] = deque()
        self._sent: dict[int, _Waiting] = {}  # by number, which is the order of sending
        self._next_number = 0
        self._away = False
        self._stream: FrameStream | None = None
        self._pacing: asyncio.TimerHandle | asyncio.Handle | None = None
        self._task = self._loop.create_task(self._run())

    def estimate(self, request: tagger_pb2.TagRequest) -> asyncio.Future[LengthEstimate | None]:
        """The estimate, in about a second at the latest, or `NoAnswer`; it may be cancelled."""
        answer: asyncio.Future[LengthEstimate | None] = self._loop.create_future()
        waiting = _Waiting(request, answer, self._loop.time())
        if self._away:
            _fail(waiting, "the tagger is away")
        elif len(self._unsent) + len(self._sent) >= _MOST_WAITING:
            _fail(waiting, "too many requests wait for the tagger")
        else:
            self._unsent.append(waiting)
            if self._pacing is None and self._stream is not None:
                self._pacing = self._loop.call_soon(self._send)
        return answer

    async def close(self) -> None:
        """Hang up; whoever still waits gets `NoAnswer`."""
        self._task.cancel()
        await asyncio.wait({self._task})

    def heard(self, payload: bytes) -> None:
        """The tagger has answered; DecodeError or `wire.WireError` for nonsense."""
        batch = tagger_pb2.EstimateBatch.FromString(payload)
        for number, estimate in wire.estimates_from_proto(batch):
            waiting = self._sent.pop(number, None)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(estimate)
        for refusal in batch.refusals:
            _fail(self._sent.pop(refusal.number, None), refusal.reason)

    async def _run(self) -> None:
        try:
            while True:
                self._away = False
                try:
                    await self._talk()
                except OSError as error:  # TimeoutError is one
                    logger.debug("tagger: %s", error)
                finally:
                    self._away = True
                    self._fail_all("the tagger is away")
                await asyncio.sleep(_PAUSE_S)
        except Exception:  # a defect of ours: requests go on without estimates
            logger.exception("asking the tagger failed")

    async def _talk(self) -> None:
        """Until the stream ends or the tagger hangs; OSError where there is no stream."""
        over = asyncio.Event()
        async with asyncio.timeout(_CONNECT_S):
            stream = await open_frames(lambda: _Stream(self, over), self._address, self._traffic)
        try:
            stream.send(hello_of(self._traffic))
            self._stream = stream
            self._send()
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
            stream.close()

    def _is_lost(self) -> bool:
        """Whether somebody has waited for too long: the tagger hangs, or its host is gone."""
        oldest = next(iter(self._sent.values()), self._unsent[0] if self._unsent else None)
        return oldest is not None and oldest.asked_s < self._loop.time() - _LOST_S

    def _send(self) -> None:
        """Send what has gathered; what comes within the next moment goes together."""
        self._pacing = None
        stream = self._stream
        if stream is None:
            return
        # Of one that hangs the wait ends soon.
        batch = tagger_pb2.TagBatch() if stream.congested else self._batch()
        if batch.requests:
            stream.send(batch.SerializeToString())
        if batch.requests or self._unsent:
            self._pacing = self._loop.call_later(_PACE_S, self._send)

    def _batch(self) -> tagger_pb2.TagBatch:
        """What is to be sent next; empty if nothing is."""
        chosen: list[_Waiting] = []
        while self._unsent and len(chosen) < _MOST_TOGETHER:
            waiting = self._unsent.popleft()
            if not waiting.answer.done():
                chosen.append(waiting)
        waited_s = self._loop.time() - chosen[0].asked_s if chosen else 0.0
        first = self._next_number
        self._next_number += len(chosen)
        self._sent.update(enumerate(chosen, first))
        return tagger_pb2.TagBatch(
            requests=[waiting.request for waiting in chosen],
            first=first,
            within_ms=max(1, round(1e3 * (self._within_s - waited_s))),
        )

    def _fail_all(self, why: str) -> None:
        for waiting in (*self._sent.values(), *self._unsent):
            _fail(waiting, why)
        self._sent.clear()
        self._unsent.clear()


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


def _fail(waiting: _Waiting | None, why: str) -> None:
    if waiting is not None and not waiting.answer.done():
        waiting.answer.set_exception(NoAnswer(why))
        waiting.answer.exception()  # whoever asked may have left: then nobody looks at it
