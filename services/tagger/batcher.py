"""Micro-batching: concurrent prompts share one inference."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from foretell.services.tagger.metrics import TaggerMetrics

logger = logging.getLogger(__name__)

_SMOOTHING = 0.2  # weight of the latest batch in the running estimate of how long a prompt takes

Q = TypeVar("Q")
A = TypeVar("A")


class Unanswered(Exception):
    """The model will not answer; `reason` labels the metric."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class _Waiting(Generic[Q, A]):
    question: Q
    answer: asyncio.Future[A]


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
        """`budget_s`: batches are kept small enough to take no longer, down to one prompt."""
        self._infer_batch = infer
        self._metrics = metrics
        self._max_batch = max_batch
        self._budget_s = budget_s
        self._queue: asyncio.Queue[_Waiting[Q, A]] = asyncio.Queue(max_queue)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tagger-inference")
        self._prompt_s = 0.0
        self._task = asyncio.create_task(self._run())

    def submit(self, question: Q) -> asyncio.Future[A]:
        """Return a future of the answer to `question`.

        It fails with `Unanswered`: at once if the queue is full, if inference fails, on `close`.
        """
        waiting = _Waiting[Q, A](question, asyncio.get_running_loop().create_future())
        if self._task.done():
            _fail([waiting], "closed")
        elif self._queue.full():
            _fail([waiting], "queue_full")
        else:
            self._queue.put_nowait(waiting)
            self._metrics.queue_depth.set(self._queue.qsize())
        return waiting.answer

    async def close(self) -> None:
        """Stop; questions that still wait get `Unanswered`."""
        self._task.cancel()
        await asyncio.wait({self._task})
        while not self._queue.empty():
            _fail([self._queue.get_nowait()], "closed")
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        batch: list[_Waiting[Q, A]] = []
        try:
            while True:
                await self._collect(batch)
                self._metrics.queue_depth.set(self._queue.qsize())
                await self._infer(batch)
                batch = []
        finally:
            _fail(batch, "closed")

    async def _collect(self, batch: list[_Waiting[Q, A]]) -> None:
        """Wait for a question, then fill `batch` with those that are queued."""
        batch.append(await self._queue.get())
        most = self._most_together()
        while len(batch) < most and not self._queue.empty():
            batch.append(self._queue.get_nowait())

    def _most_together(self) -> int:
        if not self._prompt_s:
            return self._max_batch
        return max(1, min(self._max_batch, int(self._budget_s / self._prompt_s)))

    async def _infer(self, batch: list[_Waiting[Q, A]]) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        questions = [item.question for item in batch]
        try:
            answers = await loop.run_in_executor(self._worker, self._infer_batch, questions)
            for item, answer in zip(batch, answers, strict=True):
                if not item.answer.done():
                    item.answer.set_result(answer)
        except Exception:  # any error of a model: history answers these prompts
            logger.exception("inference of %d prompts failed", len(batch))
            _fail(batch, "error")
        self._metrics.batch_size.observe(len(batch))
        self._learn(loop.time() - started_s, len(batch))

    def _learn(self, took_s: float, prompts: int) -> None:
        """Update the running mean of how long a prompt takes."""
        prompt_s = took_s / prompts
        known_s = self._prompt_s or prompt_s
        self._prompt_s = known_s + _SMOOTHING * (prompt_s - known_s)


def _fail(batch: Sequence[_Waiting[Q, A]], reason: str) -> None:
    for item in batch:
        if not item.answer.done():
            item.answer.set_exception(Unanswered(reason))
