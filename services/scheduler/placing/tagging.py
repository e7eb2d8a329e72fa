"""Asks the tagger for many estimates over one stream."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

import grpc

from foretell import wire
from foretell.model import LengthEstimate
from foretell.v1 import tagger_pb2, tagger_pb2_grpc
from services.scheduler.placing.peers import NoAnswer

logger = logging.getLogger(__name__)

_PACE_S = 0.01
"""Messages leave at most this often: a message costs both sides more than what is in it."""
_MOST_TOGETHER = 64  # requests in a message
_MOST_WAITING = 1024  # requests without an answer; a hung tagger must not take memory
_LOST_S = 1.0  # without an answer for so long, and the stream is given up
_PAUSE_S = 0.2  # before the next one

_Stream = grpc.aio.StreamStreamCall[tagger_pb2.TagBatch, tagger_pb2.EstimateBatch]
Metadata = Sequence[tuple[str, str]]


class _Waiting:
    """A request without an answer."""

    __slots__ = ("answer", "asked_s", "request")

    def __init__(
        self,
        request: tagger_pb2.TagRequest,
        answer: asyncio.Future[LengthEstimate],
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

    def __init__(
        self, stub: tagger_pb2_grpc.TaggerStub, within_s: float, metadata: Metadata = ()
    ) -> None:
        """`within_s`: how long the tagger may take to read a request well. What it could not read
        by then it estimates with less effort; that, too, may come late."""
        self._stub = stub
        self._within_s = within_s
        self._metadata = metadata
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[_Waiting] = deque()
        self._sent: dict[int, _Waiting] = {}  # by number, which is the order of sending
        self._next_number = 0
        self._wanted = asyncio.Event()
        self._away = False
        self._task = self._loop.create_task(self._run())

    def estimate(self, request: tagger_pb2.TagRequest) -> asyncio.Future[LengthEstimate]:
        """The estimate, in about a second at the latest, or `NoAnswer`; it may be cancelled."""
        answer: asyncio.Future[LengthEstimate] = self._loop.create_future()
        waiting = _Waiting(request, answer, self._loop.time())
        if self._away:
            _fail(waiting, "the tagger is away")
        elif len(self._unsent) + len(self._sent) >= _MOST_WAITING:
            _fail(waiting, "too many requests wait for the tagger")
        else:
            self._unsent.append(waiting)
            self._wanted.set()
        return answer

    async def close(self) -> None:
        """Hang up; whoever still waits gets `NoAnswer`."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while True:
                self._away = False
                stream = self._stub.TagAll(metadata=self._metadata)
                try:
                    await self._talk(stream)
                except (NoAnswer, wire.WireError, grpc.aio.AioRpcError) as error:
                    logger.debug("tagger: %s", error)
                finally:
                    self._away = True
                    stream.cancel()
                    self._fail_all("the tagger is away")
                await asyncio.sleep(_PAUSE_S)
        except Exception:  # a defect of ours: requests go on without estimates
            logger.exception("asking the tagger failed")

    async def _talk(self, stream: _Stream) -> None:
        """Until the stream ends; raises what ended it."""
        sending = self._loop.create_task(self._send(stream))
        ends = [self._loop.create_task(end) for end in (self._receive(stream), self._watch())]
        tasks = [sending, *ends]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, stream: _Stream) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while (batch := self._batch()).requests:
                try:
                    await stream.write(batch)
                except asyncio.InvalidStateError:  # it has ended; who receives learns why
                    return
                await asyncio.sleep(_PACE_S)

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

    async def _receive(self, stream: _Stream) -> None:
        # At the end comes grpc's EOF, and None for what does not decode.
        while isinstance(batch := await stream.read(), tagger_pb2.EstimateBatch):
            for number, estimate in wire.estimates_from_proto(batch):
                waiting = self._sent.pop(number, None)
                if waiting is not None and not waiting.answer.done():
                    waiting.answer.set_result(estimate)
            for refusal in batch.refusals:
                _fail(self._sent.pop(refusal.number, None), refusal.reason)

    async def _watch(self) -> None:
        """Return when somebody has waited for too long: the tagger hangs, or its host is gone."""
        while True:
            await asyncio.sleep(_LOST_S / 4)
            oldest = next(iter(self._sent.values()), self._unsent[0] if self._unsent else None)
            if oldest is not None and oldest.asked_s < self._loop.time() - _LOST_S:
                return

    def _fail_all(self, why: str) -> None:
        for waiting in (*self._sent.values(), *self._unsent):
            _fail(waiting, why)
        self._sent.clear()
        self._unsent.clear()


def _fail(waiting: _Waiting | None, why: str) -> None:
    if waiting is not None and not waiting.answer.done():
        waiting.answer.set_exception(NoAnswer(why))
        waiting.answer.exception()  # whoever asked may have left: then nobody looks at it
