"""One worker: it advances all batches and sends their requests, a window at a time."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from foretell.batch import records
from foretell.batch.lines import request_of
from foretell.batch.promises import Promises
from foretell.batch.records import Record
from foretell.batch.release import Spacing
from foretell.batch.states import SEALING, Batch, Status
from foretell.services.batch.advance import record_id, seal, time_out, validate
from foretell.services.batch.metrics import BatchMetrics
from foretell.services.batch.ordering import Ordering
from foretell.services.batch.room import Room
from foretell.services.batch.store import Lost
from foretell.services.batch.target import Endpoints, TryAgain
from foretell.services.batch.work import LEASE_S, FilePlace, Work
from foretell.services.process.database import DatabaseError

logger = logging.getLogger(__name__)
T = TypeVar("T")

MOST_TRIES = 5
"""Attempts of a request that gets 5xx statuses for which `send` does not raise `TryAgain`."""
_LOOK_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_CLAIM_AT_ONCE = 256
_READERS = 8
"""Threads that read lines from files, which may be in remote storage."""


class Executor:
    """Works until it is stopped. Each step is durable, so the process may be killed at any time."""

    def __init__(
        self,
        work: Work,
        target: Endpoints,
        window: Callable[[], int],
        metrics: BatchMetrics | None = None,
        ordering: Ordering | None = None,
    ) -> None:
        """`window` returns how many requests may be in flight now. `ordering` ranks lines; None:
        they are claimed in the order of the file."""
        self.metrics = metrics or BatchMetrics()
        self.promises = Promises()
        self._running: dict[str, Batch] = {}
        self.work = work
        self._target = target
        self._window = window
        self._ordering = ordering
        self._spacing = Spacing()
        self._room = Room()
        self._thread = ThreadPoolExecutor(1, "batch-store")
        self._long = ThreadPoolExecutor(1, "batch-files")
        self._readers = ThreadPoolExecutor(_READERS, "batch-lines")
        self._flights: dict[str, dict[int, asyncio.Task[None]]] = {}
        """Lines in flight, by batch."""
        self._moving: dict[str, asyncio.Task[None]] = {}
        """Batches that are being validated or sealed."""
        self._ended: asyncio.Queue[tuple[str, int, Record]] = asyncio.Queue()
        self._news = asyncio.Event()
        self.unsent = 0
        """Requests in flight that wait for their turn to be sent."""

    @property
    def in_flight(self) -> int:
        """Requests that wait for an answer, or whose records are not durable yet."""
        return sum(map(len, self._flights.values()))

    @property
    def busy(self) -> bool:
        """Whether batches are in progress."""
        return bool(self._running)

    def wake(self) -> None:
        """Make the worker look for new work now."""
        self._news.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`; then cancel requests in flight, which other workers repeat."""
        tasks: list[asyncio.Task[None]] = [
            asyncio.create_task(each()) for each in (self._look, self._keep, self._renew)
        ]
        stopped = asyncio.create_task(_set(stop))
        try:
            await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # raises on a defect: the process ends and is restarted
        finally:
            flights = [task for each in self._flights.values() for task in each.values()]
            ending = [stopped, *tasks, *flights, *self._moving.values()]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            if self._ordering is not None:
                await self._ordering.close()
            self._long.shutdown()
            self._readers.shutdown()
            with suppress(DatabaseError):
                await self._stored(self.work.leave)
            self._thread.shutdown()

    async def _stored(self, do: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, do, *arguments)

    # --- finding work ---------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            try:
                await self._look_once()
            except (DatabaseError, OSError) as error:
                logger.warning("the storage of batches failed, trying again: %s", error)
                await asyncio.sleep(_LOOK_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._news.wait()
            self._news.clear()

    async def _look_once(self) -> None:
        now = self.work.store.now()
        running = []
        found = await self._stored(self.work.store.open_batches)
        self._count(found)
        for batch in found:
            if batch.status in (Status.VALIDATING, Status.IN_PROGRESS):
                if batch.expires_unix_s <= now:
                    await self._stored(time_out, self.work, batch)
                    self.wake()
                elif batch.status is Status.VALIDATING:
                    self._move(batch)
                else:
                    running.append(batch)
            elif batch.status in SEALING:
                self._move(batch)
        known = {batch.id for batch in running}
        for batch_id in self._flights.keys() - known:  # cancelled or expired
            for task in self._flights[batch_id].values():
                task.cancel()
        # Lines of the batch that expires first are claimed first.
        running.sort(key=lambda each: each.expires_unix_s)
        self._promise(running, found)
        if self._ordering is not None:
            self._ordering.look(running)
        for batch in running:
            await self._begin(batch)

    def _count(self, batches: Sequence[Batch]) -> None:
        """Set the gauges of open batches and of the requests that are left."""
        self.metrics.batches.clear()
        for batch in batches:
            self.metrics.batches.labels(batch.status.value).inc()
        running = (batch for batch in batches if batch.status is Status.IN_PROGRESS)
        self.metrics.left.set(sum(batch.counts.left for batch in running))

    def _promise(self, running: Sequence[Batch], found: Sequence[Batch]) -> None:
        """Predict when each batch in progress will end, and count kept and missed predictions."""
        self.promises.tick(time.monotonic(), self.in_flight)
        now = self.work.store.clock()
        now_running = {batch.id: batch for batch in running}
        statuses = {batch.id: batch.status for batch in found}
        for batch_id in self._running.keys() - now_running.keys():
            if statuses.get(batch_id) is not Status.FINALIZING:
                continue  # it was cancelled
            if (kept := self.promises.kept(batch_id, now)) is not None:
                self.metrics.promises.labels("kept" if kept else "missed").inc()
        self._running = now_running
        validating = [batch for batch in found if batch.status is Status.VALIDATING]
        self.promises.renew(running, validating, now)
        self.metrics.late.set(self.promises.late(running))
        self.metrics.left_seconds.set(self.promises.left_s(running, now))

    async def _begin(self, batch: Batch) -> None:
        room = min(self._window() - self.in_flight, _CLAIM_AT_ONCE)
        if room <= 0:
            return
        for place in await self._stored(self.work.claim, batch.id, room):
            task = asyncio.create_task(self._execute(batch, place))
            self._flights.setdefault(batch.id, {})[place.line] = task

    # --- whole batches --------------------------------------------------------------------------

    def _move(self, batch: Batch) -> None:
        if batch.id not in self._moving:
            task = asyncio.create_task(self._moved(batch))
            self._moving[batch.id] = task
            task.add_done_callback(lambda _: self._moving.pop(batch.id, None))

    async def _moved(self, batch: Batch) -> None:
        try:
            if not await self._stored(self.work.take, batch.id):
                return
            if batch.status is Status.VALIDATING:
                models = await self._target.models(batch.tenant)
                await self._at_length(validate, self.work, batch, models)
            else:
                await self._at_length(seal, self.work, batch)
        except Lost as lost:
            logger.info("%s", lost)
        except TryAgain as error:
            logger.info("%s is validated later: %s", batch.id, error)
            await asyncio.sleep(_LOOK_S)
        except (DatabaseError, OSError) as error:
            logger.warning("%s could not be moved on, trying again: %s", batch.id, error)
            await asyncio.sleep(_LOOK_S)
        self.wake()

    async def _at_length(self, do: Callable[..., T], *arguments: object) -> T:
        """Run a function that takes seconds in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._long, do, *arguments)

    # --- single requests ------------------------------------------------------------------------

    async def _execute(self, batch: Batch, place: FilePlace) -> None:
        try:
            record = await self._record_of(batch, place)
        except OSError as error:
            logger.warning("line %d of %s cannot be read: %s", place.line, batch.id, error)
            record = None
        except asyncio.CancelledError:
            self._leave_flight(batch.id, place.line)
            raise
        except Exception:  # a defect must not keep the batch from ending
            logger.exception("line %d of %s failed", place.line, batch.id)
            failed = record_id(batch.id, place.line), place.custom_id
            record = records.unanswered(*failed, "internal_error", "the batch service failed")
        if record is not None:
            self._ended.put_nowait((batch.id, place.line, record))
            return
        await asyncio.sleep(_LOOK_S)
        with suppress(DatabaseError):
            await self._stored(self.work.give_back, batch.id, [place.line])
        self._leave_flight(batch.id, place.line)

    async def _record_of(self, batch: Batch, place: FilePlace) -> Record:
        """Send a line until it is answered. Retries end when the batch expires."""
        async with self._room.of(batch.tenant, place.length_bytes):
            loop = asyncio.get_running_loop()
            read = loop.run_in_executor(self._readers, self._request_at, batch, place)
            return await self._answered(batch, place, *await read)

    def _request_at(self, batch: Batch, place: FilePlace) -> tuple[str, bytes]:
        where = batch.input_file_id, place.begin_bytes, place.length_bytes
        return request_of(self.work.store.storage.read(*where))

    async def _answered(
        self, batch: Batch, place: FilePlace, custom_id: str, body: bytes
    ) -> Record:
        request_id = record_id(batch.id, place.line)
        pause_s = _FIRST_PAUSE_S
        failures = 0
        while True:
            await self._turn()
            try:
                sent_s = time.monotonic()
                answer = await self._target.send(batch, body, request_id)
                self._spacing.ended(time.monotonic() - sent_s)
                failures += 1
                if answer.status < 500 or failures >= MOST_TRIES:
                    return records.answered(request_id, custom_id, *answer)
                after_s = 0.0
            except TryAgain as error:
                after_s = error.after_s
            self.metrics.tries_again.inc()
            await asyncio.sleep(max(after_s, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _turn(self) -> None:
        """Wait until a request may be sent."""
        self.unsent += 1
        try:
            await asyncio.sleep(self._spacing.wait_s(self._window(), time.monotonic()))
        finally:
            self.unsent -= 1

    def _leave_flight(self, batch_id: str, line: int) -> None:
        """Note that a line is no longer in flight."""
        flights = self._flights.get(batch_id, {})
        flights.pop(line, None)
        if not flights:
            self._flights.pop(batch_id, None)
        self.wake()

    # --- records --------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Make all waiting records durable, in one transaction per batch."""
        while True:
            waiting: dict[str, list[tuple[int, Record]]] = {}
            batch_id, line, record = await self._ended.get()
            waiting[batch_id] = [(line, record)]
            while not self._ended.empty():
                batch_id, line, record = self._ended.get_nowait()
                waiting.setdefault(batch_id, []).append((line, record))
            for batch_id, ended in waiting.items():
                await self._complete(batch_id, ended)
                for line, _ in ended:
                    self._leave_flight(batch_id, line)

    async def _complete(self, batch_id: str, ended: list[tuple[int, Record]]) -> None:
        while True:
            try:
                kept = await self._stored(self.work.complete, batch_id, ended)
                if self._ordering is not None:
                    self._ordering.learn(batch_id, ended)
                if batch_id in self._running:
                    self.promises.learn(self._running[batch_id], kept)
                for record in kept:
                    self.metrics.requests.labels("completed" if record.ok else "failed").inc()
                    self.metrics.tokens.labels("input").inc(record.usage.input_tokens)
                    self.metrics.tokens.labels("output").inc(record.usage.output_tokens)
                    self.metrics.cached_tokens.inc(record.usage.cached_tokens)
                return
            except Lost as lost:
                logger.info("%d answers came too late: %s", len(ended), lost)
                return
            except DatabaseError as error:
                logger.warning("answers could not be stored, trying again: %s", error)
                await asyncio.sleep(_LOOK_S)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 4)
            with suppress(DatabaseError):  # retried; if it keeps failing, other workers take over
                await self._stored(self.work.renew)


async def _set(event: asyncio.Event) -> None:
    await event.wait()
