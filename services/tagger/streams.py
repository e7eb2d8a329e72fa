"""Streams of requests, and of what is estimated of them."""

import asyncio
import logging
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from foretell import wire
from foretell.model import LengthEstimate
from foretell.services.process.frames import ServedStream
from foretell.services.process.logs import about
from foretell.services.process.traffic import Traffic
from foretell.services.tagger.estimators import TaggerEstimators
from foretell.services.tagger.problems import batch_problem, tag_problem
from foretell.v1 import tagger_pb2

logger = logging.getLogger(__name__)

MAX_STREAMS = 256
_MAX_BATCH_BYTES = 8 << 20  # more than a scheduler accepts as a body
_MOST_UNANSWERED = 1024  # beyond, nothing more is read from a stream


class TagStreams:
    """All streams of a tagger. `stream` makes one, `close` ends them."""

    def __init__(self, estimators: TaggerEstimators[Any], traffic: Traffic) -> None:
        self._estimators = estimators
        self._traffic = traffic
        self._open: set[TagStream] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()

    def stream(self) -> "TagStream":
        """The end of a stream that somebody is opening."""
        return TagStream(self, self._estimators, self._traffic)

    async def close(self, within_s: float) -> None:
        """End the streams, once what was asked is answered; at the latest `within_s` from now."""
        for stream in list(self._open):
            stream.drain()
        try:
            async with asyncio.timeout(within_s):
                await self._none_open.wait()
        except TimeoutError:
            for stream in list(self._open):
                stream.close()

    def joined(self, stream: "TagStream") -> bool:
        """A scheduler has proved who it is; False where there are too many."""
        if len(self._open) >= MAX_STREAMS:
            return False
        self._open.add(stream)
        self._none_open.clear()
        return True

    def left(self, stream: "TagStream") -> None:
        self._open.discard(stream)
        if not self._open:
            self._none_open.set()


class TagStream(ServedStream):
    """One scheduler's stream: each request gets one estimate or one refusal."""

    def __init__(
        self, streams: TagStreams, estimators: TaggerEstimators[Any], traffic: Traffic
    ) -> None:
        super().__init__(traffic, _MAX_BATCH_BYTES)
        self._streams = streams
        self._estimators = estimators
        self._loop = asyncio.get_running_loop()
        self._unanswered = 0
        self._estimates: list[tuple[int, LengthEstimate]] = []
        self._refusals: list[tagger_pb2.Refusal] = []
        self._is_draining = False

    def joined(self) -> bool:
        return self._streams.joined(self)

    def left(self) -> None:
        self._streams.left(self)

    def drain(self) -> None:
        """Take no more requests, and end once all are answered."""
        self._is_draining = True
        self._settle()

    def heard(self, payload: bytes) -> None:
        batch = tagger_pb2.TagBatch.FromString(payload)
        if problem := batch_problem(batch):
            raise DecodeError(problem)
        for number, request in enumerate(batch.requests, batch.first):
            self._ask(number, request)
        self._settle()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._settle()

    def _ask(self, number: int, request: tagger_pb2.TagRequest) -> None:
        self._unanswered += 1
        if problem := tag_problem(request):
            self._answer_soon()
            self._refusals.append(tagger_pb2.Refusal(number=number, reason=problem))
            logger.debug("refused: %s", problem, extra=about(request.x_request_id))
        else:
            self._estimators.ask(request, partial(self._answer, number))

    def _answer(self, number: int, estimate: LengthEstimate) -> None:
        self._answer_soon()
        self._estimates.append((number, estimate))

    def _answer_soon(self) -> None:
        """What is found in one turn of the loop leaves in one message."""
        if not self._estimates and not self._refusals:
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        batch = wire.estimates_to_proto(self._estimates)
        batch.refusals.extend(self._refusals)
        self._unanswered -= len(self._estimates) + len(self._refusals)
        self._estimates, self._refusals = [], []
        self.send(batch.SerializeToString())
        self._settle()

    def _settle(self) -> None:
        """Read on, or not: a scheduler that does not read must not take memory."""
        if self._is_draining and not self._unanswered:
            self.finish()
        self.read_on(
            not self._is_draining and not self.congested and self._unanswered < _MOST_UNANSWERED
        )
