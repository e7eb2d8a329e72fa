"""`foretell run-batch`: has a file of requests answered; a killed run can be continued."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from foretell.batch.lines import ENDPOINTS
from foretell.batch.records import TokenUsage
from foretell.batch.release import LOOK_S, PLAIN_WINDOW
from foretell.batch.states import ENDED, Batch, Status
from foretell.config import load_profile
from foretell.services.batch.advance import validate
from foretell.services.batch.executor import Executor
from foretell.services.batch.ordering import Ordering
from foretell.services.batch.store import BatchStore, new_id
from foretell.services.batch.target import Endpoints, TryAgain
from foretell.services.batch.uploads import Upload
from foretell.services.batch.window import Window
from foretell.services.batch.work import Work
from foretell.services.process.folders import only_one
from foretell.services.process.traffic import OPEN
from foretell.tools.progress import Show

_MOST_REQUESTS = 1 << 40
"""The most requests of a file: no limit but the disk."""
_DAY_S = 86_400
_FOR_EVER_S = 10 * 365 * _DAY_S
_PIECE_BYTES = 1 << 20
_RATE_S = 10.0
_MOST_SHOWN = 10


class CannotRun(Exception):
    """The file cannot be answered; the text says why."""


class WrongInput(CannotRun):
    """Lines of the input are wrong, so there is nothing to continue later."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a whole file."""

    completed: int
    failed: int
    output_tokens: int
    sharing_ratio: float
    """Share of the prompt tokens that engines found in a prefix cache, as they report it."""
    order: str = ""
    """A description of the order in which requests were sent; "": the order of the file."""

    def __str__(self) -> str:
        shared = f", {self.sharing_ratio:.0%} of prompts cached" if self.sharing_ratio else ""
        counts = f"{self.completed} completed, {self.failed} failed"
        return f"{counts}, {self.output_tokens} output tokens{shared}"


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
) -> Outcome:
    """Send the requests in `source` and write their answers to `output`, in the same order.

    `model`: the only one that requests may name; "": any. `concurrency`: requests in flight; 0: as
    many as schedulers' predictions allow. `profile`: requests are sent in the order that ends
    soonest on a simulated engine of this GPU profile; "": grouped by common prefixes; None: in the
    order of the file. Results are kept beside `output` until all are there, so that the same call
    continues an interrupted one. Raises `CannotRun`, OSError.
    """
    try:
        if profile:
            load_profile(profile)
    except ValueError as error:
        raise CannotRun(str(error)) from error
    folder = output.with_name(f"{output.name}.unfinished")
    folder.mkdir(parents=True, exist_ok=True)
    refusal = CannotRun(f"another run-batch writes this output ({folder})")
    with only_one(folder / "lock", refusal):
        store = BatchStore(folder)
        try:
            batch = _batch_of(store, source, folder)
            work = Work(store, alone=True)
            ordering = None if profile is None else Ordering(work, folder, profile=profile)

            async def served() -> Batch:
                endpoints = Endpoints(urls, OPEN, api_key=api_key)
                try:
                    begun = await _begun(work, batch, endpoints, model)
                    window = Window(endpoints, fixed=concurrency, plain=PLAIN_WINDOW)
                    executor = Executor(work, endpoints, lambda: window.size, ordering=ordering)
                    return await _answered(begun, executor, window, show)
                except TryAgain as error:
                    raise CannotRun(f"{', '.join(urls)} cannot be asked: {error}") from error
                finally:
                    await endpoints.close()

            outcome = asyncio.run(served())
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
    """Remove the kept results. Renaming first makes this atomic."""
    gone = folder.with_name(f"{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def _batch_of(store: BatchStore, source: Path, folder: Path) -> Batch:
    """The batch of a file: that of an earlier call, or else a new one."""
    with source.open("rb") as file:
        digest = file_digest(file, "sha256")
    known = next(iter(store.batches("", "", 1) or ()), None)
    if known is not None:
        if known.metadata != {"sha256": digest.hexdigest()}:
            raise CannotRun(
                "another input was begun for this output and has not ended; remove "
                f"{folder} to begin anew"
            )
        return known
    upload = Upload(store)
    try:
        with source.open("rb") as file:
            while data := file.read(_PIECE_BYTES):
                upload.write(data)
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


async def _begun(work: Work, batch: Batch, endpoints: Endpoints, model: str) -> Batch:
    """The batch, once its lines are validated; raises `TryAgain`."""
    if batch.status is Status.VALIDATING:
        models = await endpoints.models("")
        if model:
            models = {model} & set(models or ())
        work.take(batch.id)
        batch = await asyncio.to_thread(validate, work, batch, models, _MOST_REQUESTS)
    if batch.errors:
        raise WrongInput(_told(batch))
    return batch


async def _answered(batch: Batch, executor: Executor, window: Window, show: Show) -> Batch:
    """The batch, once it has ended."""
    await window.look(executor)
    stop = asyncio.Event()
    running = asyncio.create_task(executor.run(stop))
    rate = _Rate()
    try:
        while batch.status not in ENDED and not running.done():
            await window.look(executor)
            batch = await asyncio.to_thread(_known, executor.work.store, batch.id)
            done = batch.counts.total - batch.counts.left
            per_s = rate.of(batch.usage.output_tokens)
            end_unix_s = executor.promises.done_by(batch.id)
            show(_progress(per_s, batch.usage, end_unix_s), done, batch.counts.total)
            await asyncio.sleep(LOOK_S)
    finally:
        stop.set()
        await running
    return batch


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
    """The text beside the bar: the rate, the sharing achieved, and the predicted end."""
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
        """Note the total so far, and return the rate."""
        now_s = time.monotonic()
        self._seen = [each for each in self._seen if each[0] > now_s - _RATE_S]
        self._seen.append((now_s, tokens))
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / max(last_s - first_s, 1e-9) if last_s > first_s else 0.0


def _write(store: BatchStore, batch: Batch, output: Path) -> None:
    """Write answers and errors in the order of the input, atomically."""
    part = output.with_name(f"{output.name}.part")
    with part.open("wb") as file:
        for line in _in_order(store, batch):
            file.write(line)
        file.flush()
        os.fsync(file.fileno())
    part.replace(output)


def _in_order(store: BatchStore, batch: Batch) -> Iterator[bytes]:
    """The lines of answers and errors, merged: both files are in the order of the input."""
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
