"""One stream of requests, and of what is estimated of them."""

import asyncio
from functools import partial
from typing import Any

import grpc

from foretell import wire
from foretell.model import LengthEstimate
from foretell.v1 import tagger_pb2
from services.tagger.estimators import Estimators
from services.tagger.problems import batch_problem, tag_problem

_MOST_UNANSWERED = 1024  # beyond, nothing more is read from a stream

Context = grpc.aio.ServicerContext[tagger_pb2.TagBatch, tagger_pb2.EstimateBatch]


class TagStream:
    """Answers one call of `TagAll`: each request gets one estimate or one refusal."""

    def __init__(self, estimators: Estimators[Any], context: Context) -> None:
        self._estimators = estimators
        self._context = context
        self._unanswered = 0
        self._estimates: list[tuple[int, LengthEstimate]] = []
        self._refusals: list[tagger_pb2.Refusal] = []
        self._answered = asyncio.Event()
        self._has_room = asyncio.Event()
        self._ending = False

    async def run(self, stopping: asyncio.Event) -> None:
        """Until the client hangs up, or it is `stopping`; what was asked is answered first."""
        writing = asyncio.create_task(self._write())
        reading = asyncio.create_task(self._read())
        stopped = asyncio.create_task(stopping.wait())
        tasks = {reading, stopped, writing}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and (problem := reading.result()):
                await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
            self._ending = True
            self._answered.set()
            await writing
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> str:
        """Until the client hangs up; returns what was wrong with its last message."""
        # At the end comes grpc's EOF, and None for what does not decode.
        while isinstance(batch := await self._context.read(), tagger_pb2.TagBatch):
            if problem := batch_problem(batch):
                return problem
            within_s = batch.within_ms / 1e3 or None
            for number, request in enumerate(batch.requests, batch.first):
                self._ask(number, request, within_s)
            while self._unanswered >= _MOST_UNANSWERED:
                self._has_room.clear()
                await self._has_room.wait()
        return ""

    def _ask(self, number: int, request: tagger_pb2.TagRequest, within_s: float | None) -> None:
        self._unanswered += 1
        if problem := tag_problem(request):
            self._refusals.append(tagger_pb2.Refusal(number=number, reason=problem))
            self._answered.set()
        else:
            self._estimators.ask(request, within_s, partial(self._answer, number))

    def _answer(self, number: int, estimate: LengthEstimate) -> None:
        self._estimates.append((number, estimate))
        self._answered.set()

    async def _write(self) -> None:
        while self._unanswered or not self._ending:
            await self._answered.wait()
            self._answered.clear()
            estimates, self._estimates = self._estimates, []
            refusals, self._refusals = self._refusals, []
            if not estimates and not refusals:
                continue
            batch = wire.estimates_to_proto(estimates)
            batch.refusals.extend(refusals)
            await self._context.write(batch)
            self._unanswered -= len(estimates) + len(refusals)
            self._has_room.set()
