"""`foretell run-batch`: a file of requests answered, whatever is killed on the way."""

import asyncio
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from pathlib import Path
from threading import Event
from typing import Any

from foretell.batch.lines import ENDPOINTS
from foretell.batch.records import TokenUsage
from foretell.batch.release import LOOK_S, PLAIN_WINDOW, Release, Seen
from foretell.batch.states import ENDED, Batch, Status
from foretell.config import load_profile
from foretell.services.batch.advance import validate
from foretell.services.batch.executor import Executor, TryAgain
from foretell.services.batch.ordering import Ordering
from foretell.services.batch.store import BatchStore, new_id
from foretell.services.batch.target import Endpoints, seen_of
from foretell.services.batch.uploads import Upload
from foretell.services.batch.work import Work
from foretell.services.process.traffic import OPEN
from foretell.tools.progress import Show, showing

_MOST = 1 << 40
"""Bytes and requests of a file: as many as the disk holds."""
_DAY_S = 86_400
_FOR_EVER_S = 10 * 365 * _DAY_S
_PIECE_BYTES = 1 << 20
_RATE_S = 10.0
_MOST_SHOWN = 10
_PLAIN_LOOK_S = 5.0
"""Seconds until such an endpoint is asked again whether it is one."""


class CannotRun(Exception):
    """What is wrong with the input, or what stands in the way."""


class WrongInput(CannotRun):
    """Lines of the input are wrong, so there is nothing that could be gone on with."""


class Halted(Exception):
    """It was told to stop before everything was answered; what was done is kept."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a file."""

    completed: int
    failed: int
    output_tokens: int
    sharing_ratio: float
    """Share of the prompt tokens that engines say they found in a prefix cache."""
    order: str = ""
    """What there is to say of the order in which requests were sent; "": it is the file's."""

    def __str__(self) -> str:
        shared = f", {self.sharing_ratio:.0%} of prompts cached" if self.sharing_ratio else ""
        counts = f"{self.completed} completed, {self.failed} failed"
        return f"{counts}, {self.output_tokens} output tokens{shared}"


def run_batch(
    source: Path,
    output: Path,
    urls: Sequence[str],
    *,
    model: str = "",
    concurrency: int = 0,
    api_key: str = "",
    profile: str | None = None,
) -> Outcome:
    """`answer_file` with a progress bar."""
    with showing("reading") as show:
        return answer_file(
            source,
            output,
            urls,
            show,
            model=model,
            concurrency=concurrency,
            api_key=api_key,
            profile=profile,
        )


def answer_file(
    source: Path,
    output: Path,
    urls: Sequence[str],
    show: Show,
    *,
    model: str = "",
    concurrency: int = 0,
    api_key: str = "",
    profile: str | None = None,
    halt: Event | None = None,
) -> Outcome:
    """Have the requests in `source` answered and write their answers to `output`, in their order.

    `model`: that of all requests; "": they say. `concurrency`: requests at once; 0: as many as the
    schedulers' predictions allow. `profile`: requests are sent in the order that is done soonest
    on a simulated engine of this GPU profile; "": those that begin alike together; None: in the
    order of the file. What was done is kept beside `output` until all is, so that the same call
    goes on where another ended. Raises `CannotRun`, OSError; `Halted` soon after another thread
    has set `halt`.
    """
    try:
        if profile:
            load_profile(profile)
    except ValueError as error:
        raise CannotRun(str(error)) from error
    folder = output.with_name(f"{output.name}.unfinished")
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one_in(folder):
        store = BatchStore(folder)
        try:
            batch = _batch_of(store, source, folder)
            work = Work(store, alone=True)
            batch = asyncio.run(_begun(work, batch, urls, model, api_key))
            ordering = None if profile is None else Ordering(work, folder, profile=profile)
            halt = halt or Event()
            outcome = asyncio.run(
                _answered(work, batch, urls, concurrency, api_key, show, halt, ordering)
            )
            if outcome.status not in ENDED:
                raise Halted
            _write(store, outcome, output)
        except WrongInput:
            _discard(folder)
            raise
        finally:
            store.close()
        _discard(folder)
    counts, usage = outcome.counts, outcome.usage
    tokens, shared = usage.output_tokens, usage.sharing_ratio
    said = ordering.said if ordering is not None else ""
    return Outcome(counts.completed, counts.failed, tokens, shared, said)


def _discard(folder: Path) -> None:
    """Remove what was kept: it is gone at once, though its parts go one by one."""
    gone = folder.with_name(f"{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def _batch_of(store: BatchStore, source: Path, folder: Path) -> Batch:
    """The batch of a file, which may have been begun before."""
    digest = sha256()
    with source.open("rb") as file:
        while data := file.read(_PIECE_BYTES):
            digest.update(data)
    known = next(iter(store.batches("", "", 1) or ()), None)
    if known is not None:
        if known.metadata != {"sha256": digest.hexdigest()}:
            raise CannotRun(
                "another input was begun for this output and has not ended; remove "
                f"{folder} to begin anew"
            )
        return known
    upload = Upload(store, _MOST)
    try:
        with source.open("rb") as file:
            while data := file.read(_PIECE_BYTES):
                upload.add(data)
                upload.write()
        stored = upload.finish("", source.name, _FOR_EVER_S)
    finally:
        upload.abort()
    now = store.now()
    return store.add_batch(
        Batch(
            id=new_id("batch_", digest.digest()),
            tenant="",
            input_file_id=stored.id,
            endpoint=endpoint_of(source),
            completion_window="none",
            created_unix_s=now,
            expires_unix_s=now + _FOR_EVER_S,
            metadata={"sha256": digest.hexdigest()},
        )
    )


def endpoint_of(source: Path) -> str:
    """The endpoint of the first request, which is that of all. Raises `CannotRun`, OSError."""
    with source.open("rb") as file:
        for raw in file:
            if raw.strip():
                try:
                    url = json.loads(raw)["url"]
                except (ValueError, TypeError, KeyError) as error:
                    raise CannotRun(f"{source}: the first line is no request") from error
                if url not in ENDPOINTS:
                    known = ", ".join(ENDPOINTS)
                    raise CannotRun(f"{source}: 'url' must be one of {known}")
                return str(url)
    raise CannotRun(f"{source} has no requests")


async def _begun(work: Work, batch: Batch, urls: Sequence[str], model: str, api_key: str) -> Batch:
    """The batch, once its lines are validated."""
    if batch.status is Status.VALIDATING:
        endpoints = Endpoints(urls, OPEN, api_key=api_key)
        try:
            models = await endpoints.models("")
        except TryAgain as error:
            raise CannotRun(f"{', '.join(urls)} cannot be asked: {error}") from error
        finally:
            await endpoints.close()
        if model:
            models = {model} & set(models or ())
        work.take(batch.id)
        batch = await asyncio.to_thread(validate, work, batch, models, _MOST)
    if batch.errors:
        raise WrongInput(_told(batch))
    return batch


async def _answered(
    work: Work,
    batch: Batch,
    urls: Sequence[str],
    concurrency: int,
    api_key: str,
    show: Show,
    halt: Event,
    ordering: Ordering | None,
) -> Batch:
    """The batch, once it has ended or `halt` is set."""
    endpoints = Endpoints(urls, OPEN, api_key=api_key)
    try:
        window = _Window(endpoints, concurrency)
        await window.look(0)
        executor = Executor(work, endpoints, window.size, ordering=ordering)
        stop = asyncio.Event()
        running = asyncio.create_task(executor.run(stop))
        rate = _Rate()
        try:
            while batch.status not in ENDED and not running.done() and not halt.is_set():
                if await window.look(executor.in_flight):
                    executor.wake()
                batch = await asyncio.to_thread(_known, work.store, batch.id)
                done = batch.counts.total - batch.counts.left
                per_s = rate.of(batch.usage.output_tokens)
                end_unix_s = executor.promises.done_by(batch.id)
                show(_progress(per_s, batch.usage, end_unix_s), done, batch.counts.total)
                await asyncio.sleep(LOOK_S)
        finally:
            stop.set()
            await running
        return batch
    finally:
        await endpoints.close()


class _Window:
    """How many requests may be on their way at once."""

    def __init__(self, endpoints: Endpoints, fixed: int) -> None:
        """`fixed`: so many; 0: what schedulers' predictions allow beside online requests, and
        `PLAIN_WINDOW` where the endpoint is no scheduler."""
        self._endpoints, self._fixed = endpoints, fixed
        self._release = Release(inf)
        self._told = False
        self._next_s = 0.0

    def size(self) -> int:
        """Requests that may be on their way now."""
        return self._fixed or (self._release.window if self._told else PLAIN_WINDOW)

    async def look(self, in_flight: int) -> bool:
        """Ask the endpoint, if it is time to; whether the size may have changed."""
        now_s = time.monotonic()
        if self._fixed or now_s < self._next_s:
            return False
        status = await self._endpoints.status() or {}
        self._told = self._told or "instances" in status
        if not self._told:
            self._next_s = now_s + _PLAIN_LOOK_S
            return False
        instances: list[dict[str, Any]] = status.get("instances", [])
        # A scheduler that does not answer now is one instance of which nothing is known.
        seen = dict(map(seen_of, instances)) or {"": Seen(True)}
        expects_online = not self._told or self._endpoints.expects_online(status)
        self._release.observe(seen, in_flight, expects_online=expects_online)
        return True


def _known(store: BatchStore, batch_id: str) -> Batch:
    batch = store.batch("", batch_id)
    assert batch is not None, "nobody else removes it"
    return batch


def _told(batch: Batch) -> str:
    lines = [
        f"line {error.line}: {error.message}" if error.line else error.message
        for error in batch.errors[:_MOST_SHOWN]
    ]
    more = len(batch.errors) - len(lines)
    return "\n".join([*lines, *([f"and {more} more"] if more else [])])


def _progress(tokens_per_s: float, usage: TokenUsage, end_unix_s: float | None) -> str:
    """What stands beside the bar: the pace, the sharing achieved, and the predicted end."""
    said = [f"{tokens_per_s:,.0f} tokens/s"]
    if usage.cached_tokens:
        said.append(f"{usage.sharing_ratio:.0%} of prompts cached")
    if end_unix_s is not None:
        far = end_unix_s - time.time() > _DAY_S
        clock = time.strftime("%x %H:%M" if far else "%H:%M", time.localtime(end_unix_s))
        said.append(f"done by {clock}")
    return ", ".join(said)


class _Rate:
    """Output tokens per second, over the last seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, tokens: int) -> float:
        """The rate now that so many are known."""
        now_s = time.monotonic()
        self._seen = [each for each in self._seen if each[0] > now_s - _RATE_S]
        self._seen.append((now_s, tokens))
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / max(last_s - first_s, 1e-9) if last_s > first_s else 0.0


def _write(store: BatchStore, batch: Batch, output: Path) -> None:
    """Answers and errors in the order of the input, all or none."""
    part = output.with_name(f"{output.name}.part")
    with part.open("wb") as file:
        for line in _in_order(store, batch):
            file.write(line)
        file.flush()
        os.fsync(file.fileno())
    part.replace(output)


def _in_order(store: BatchStore, batch: Batch) -> Iterator[bytes]:
    """Both files have the order of the input, so they are merged line by line."""
    ids = [each for each in (batch.output_file_id, batch.error_file_id) if each]
    files = [_records(store, each) for each in ids]
    heads = [next(each) for each in files]
    with store.storage.opened(batch.input_file_id) as asked:
        for raw in asked:
            if not raw.strip():
                continue
            custom_id = json.loads(raw)["custom_id"]
            place = [known for known, _ in heads].index(custom_id)
            yield heads[place][1]
            heads[place] = next(files[place], ("", b""))


def _records(store: BatchStore, file_id: str) -> Iterator[tuple[str, bytes]]:
    with store.storage.opened(file_id) as file:
        for line in file:
            yield json.loads(line)["custom_id"], line


@contextmanager
def _only_one_in(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotRun(f"another run-batch writes this output ({folder})") from error
        yield
