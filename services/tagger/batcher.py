"""Micro-batching: concurrent prompts share one inference."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.tagger.metrics import TaggerMetrics

logger = logging.getLogger(__name__)

_SMOOTHING = 0.2  # weight of the latest batch in the running estimates of how long one takes
_FORGIVE_EVERY_S = 0.3
_DEVIATIONS = 2.0  # by which a batch is expected to take longer than it does on average

Q = TypeVar("Q")
A = TypeVar("A")


class Unanswered(Exception):
    """The model will not answer, or not in time; `reason` labels the metric."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class _Waiting(Generic[Q, A]):
    question: Q
    answer: asyncio.Future[A]
    due_s: float
    """When nobody waits for it any more; infinite where somebody always does."""


class MicroBatcher(Generic[Q, A]):
    """A bounded queue in front of `infer`, which runs in a thread of its own and may raise.

    `infer` answers a batch, in its order. Create it in a running event loop; `close` ends it.
    """

    def __init__(
        self,
        infer: Callable[[Sequence[Q]], Sequence[A]],
        metrics: TaggerMetrics,
        *,
        max_batch: int,
        budget_s: float,
        max_queue: int,
    ) -> None:
        """`budget_s`: batches are kept so small that one takes no longer, as far as that goes."""
        self._infer_batch = infer
        self._metrics = metrics
        self._max_batch = max_batch
        self._budget_s = budget_s
        self._queue: asyncio.Queue[_Waiting[Q, A]] = asyncio.Queue(max_queue)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tagger-inference")
        self._prompt_s = 0.0
        self._deviation_s = 0.0  # mean distance of a batch's duration from what its size promised
        self._busy_until_s = 0.0  # as expected; 0: nothing is under way
        self._forgave_s = -math.inf
        self._task = asyncio.create_task(self._run())

    def submit(self, question: Q, within_s: float | None) -> asyncio.Future[A]:
        """The answer to `question`; None waits for as long as it takes.

        `Unanswered` at once when the queue is full or so long that `within_s` would pass; as soon
        as it is certain to pass, when the inference fails, and on `close`.
        """
        loop = asyncio.get_running_loop()
        due_s = math.inf if within_s is None else loop.time() + within_s
        waiting = _Waiting[Q, A](question, loop.create_future(), due_s)
        if self._task.done():
            _fail([waiting], "closed")
        elif within_s is not None and within_s <= self._expected_wait_s():
            if not self._busy_until_s and self._queue.empty():
                self._forgive()
            _fail([waiting], "deadline")
        elif self._queue.full():
            _fail([waiting], "queue_full")
        else:
            self._queue.put_nowait(waiting)
            self._metrics.queue_depth.set(self._queue.qsize())
            if within_s is not None:
                timer = loop.call_later(within_s, _fail, [waiting], "deadline")
                waiting.answer.add_done_callback(lambda _: timer.cancel())
        return waiting.answer

    async def close(self) -> None:
        """Stop; whoever still waits gets `Unanswered`."""
        self._task.cancel()
        await asyncio.wait({self._task})
        while not self._queue.empty():
            _fail([self._queue.get_nowait()], "closed")
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _expected_wait_s(self) -> float:
        busy_s = 0.0
        if self._busy_until_s:
            busy_s = self._busy_until_s - asyncio.get_running_loop().time()
            if busy_s < -_DEVIATIONS * self._deviation_s:
                return math.inf  # it has no time on the processor: who knows for how long
        return max(0.0, busy_s) + self._expected_s(self._queue.qsize() + 1)

    def _expected_s(self, prompts: int) -> float:
        """Within that so many prompts are read, nearly always."""
        return self._prompt_s * prompts + _DEVIATIONS * self._deviation_s

    def _forgive(self) -> None:
        """Forget a little of how slow batches were.

        One slow batch must not shut the model off for good, and only a new one can show that it is
        fast again. Now and then, however many are refused meanwhile: where the model has no time
        on the processor, to try means to keep somebody waiting in vain.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._forgave_s + _FORGIVE_EVERY_S:
            return
        self._forgave_s = now_s
        self._prompt_s *= 1.0 - _SMOOTHING
        self._deviation_s *= 1.0 - _SMOOTHING

    async def _run(self) -> None:
        batch: list[_Waiting[Q, A]] = []
        try:
            while True:
                await self._collect(batch)
                self._metrics.queue_depth.set(self._queue.qsize())
                batch = self._in_time(batch)
                if batch:
                    await self._infer(batch)
                batch = []
        finally:
            _fail(batch, "closed")

    async def _collect(self, batch: list[_Waiting[Q, A]]) -> None:
        """Fill `batch` with what waits; waits for the first one."""
        batch.append(await self._queue.get())
        most = self._most_together()
        while len(batch) < most and not self._queue.empty():
            batch.append(self._queue.get_nowait())

    def _in_time(self, batch: list[_Waiting[Q, A]]) -> list[_Waiting[Q, A]]:
        """Those of `batch` that it will not be too late for; to read the others helps nobody."""
        end_s = asyncio.get_running_loop().time() + self._prompt_s * len(batch)
        _fail([item for item in batch if item.due_s < end_s], "deadline")
        chosen = [item for item in batch if not item.answer.done()]
        if not chosen:
            self._forgive()
        return chosen

    def _most_together(self) -> int:
        if not self._prompt_s:
            return self._max_batch
        return max(1, min(self._max_batch, int(self._budget_s / self._prompt_s)))

    async def _infer(self, batch: list[_Waiting[Q, A]]) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        questions = [item.question for item in batch]
        self._busy_until_s = started_s + self._prompt_s * len(batch)
        try:
            answers = await loop.run_in_executor(self._worker, self._infer_batch, questions)
            for item, answer in zip(batch, answers, strict=True):
                if not item.answer.done():
                    item.answer.set_result(answer)
        except Exception:  # whatever a model can raise: its prompts go to history, others go on
            logger.exception("inference of %d prompts failed", len(batch))
            _fail(batch, "error")
        finally:
            self._busy_until_s = 0.0
        self._metrics.batch_size.observe(len(batch))
        self._learn(loop.time() - started_s, len(batch))

    def _learn(self, took_s: float, prompts: int) -> None:
        """Update the running means of duration and deviation, like TCP (RFC 6298)."""
        if not self._prompt_s:
            self._prompt_s = took_s / prompts
            return
        off_s = abs(took_s - self._prompt_s * prompts)
        self._deviation_s += _SMOOTHING * (off_s - self._deviation_s)
        self._prompt_s += _SMOOTHING * (took_s / prompts - self._prompt_s)


def _fail(batch: Sequence[_Waiting[Q, A]], reason: str) -> None:
    for item in batch:
        if not item.answer.done():
            item.answer.set_exception(Unanswered(reason))
