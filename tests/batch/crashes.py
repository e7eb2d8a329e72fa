"""Kills a process with SIGKILL at each operation on durable storage in turn; checks what is left.

Run it as a program, with the names of scenarios: it forks, and must have only one thread then.
`--database URL` uses a Postgres server, and drops its tables; `--every N`: each Nth operation.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

from foretell.batch.states import ENDED, SEALING, Batch, Status
from foretell.services.batch.advance import seal, time_out, validate
from foretell.services.batch.disk import unnoticed
from foretell.services.batch.executor import Executor
from foretell.services.batch.store import BatchStore
from foretell.services.batch.target import BatchAnswer, TryAgain
from foretell.services.batch.uploads import Upload
from foretell.services.batch.work import Work, all_lines

LINES = 6
URL = "/v1/completions"
BORN_UNIX_S = 1_000_000
MEMORY = next((each for each in ("/dev/shm",) if os.access(each, os.W_OK)), None)
"""A folder in memory; no disk is needed, as a killed process loses nothing that it has written."""
Notice = Callable[[str], None]
State = tuple[BatchStore, Callable[[], float]]


def input_file(wrong: bool = False) -> bytes:
    bodies = [{"model": "m", "prompt": f"p{number}"} for number in range(LINES)]
    if wrong:
        del bodies[3]["model"]
    requests = [
        {"custom_id": f"c{number}", "method": "POST", "url": URL, "body": body}
        for number, body in enumerate(bodies)
    ]
    return b"".join(json.dumps(each).encode() + b"\n" for each in requests)


class Target:
    """Answers every request, some with an error."""

    async def models(self, tenant: str) -> Collection[str] | None:
        return None

    async def send(self, batch: Batch, body: bytes, request_id: str) -> BatchAnswer:
        await asyncio.sleep(0)
        prompt = json.loads(body)["prompt"]
        if prompt == "p4":
            return BatchAnswer(400, request_id, b'{"error": {"message": "no"}}')
        answer = {"said": prompt, "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
        return BatchAnswer(200, request_id, json.dumps(answer).encode())


class Silent(Target):
    """Answers some lines only; the others are to be tried again for ever."""

    async def send(self, batch: Batch, body: bytes, request_id: str) -> BatchAnswer:
        if json.loads(body)["prompt"] in ("p2", "p3", "p5"):
            raise TryAgain("not yet")
        return await super().send(batch, body, request_id)


def upload(store: BatchStore, wrong: bool = False) -> None:
    if store.files("", "", 1):
        return
    up = Upload(store)
    data = input_file(wrong)
    for begin in range(0, len(data), 200):
        up.write(data[begin : begin + 200])
    up.finish("", "input.jsonl")


def create(store: BatchStore, lifetime_s: int = 1000) -> Batch:
    (file,) = store.files("", "", 1, ascending=True) or ()
    times = BORN_UNIX_S, BORN_UNIX_S + lifetime_s
    batch = Batch("batch_1", "", file.id, URL, "24h", *times)
    return store.add_batch(batch, idempotency_key="once")


def execute(store: BatchStore, target: Target, until: Callable[[Batch], bool]) -> None:
    """Execute lines until the batch meets `until`."""

    async def run() -> None:
        stop = asyncio.Event()
        executor = Executor(Work(store, alone=True), target, lambda: 3)
        running = asyncio.create_task(executor.run(stop))
        while not until(only(store)) and not running.done():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        stop.set()
        await running

    asyncio.run(run())


def only(store: BatchStore) -> Batch:
    batch = store.batch("", "batch_1")
    assert batch is not None
    return batch


# --- scenarios to interrupt; each can be started again after any interruption ---------------------


def whole(store: BatchStore, _: Notice) -> None:
    upload(store)
    create(store)
    execute(store, Target(), lambda batch: batch.status in ENDED)


def refused(store: BatchStore, _: Notice) -> None:
    upload(store, wrong=True)
    work = Work(store, alone=True)
    batch = create(store)
    if batch.status is Status.VALIDATING:
        assert work.take(batch.id)
        validate(work, batch, None)


def stopped_early(store: BatchStore, cancel: bool) -> None:
    upload(store)
    create(store)
    batch = only(store)
    if batch.status in (Status.VALIDATING, Status.IN_PROGRESS):
        execute(store, Silent(), lambda batch: batch.counts.total - batch.counts.left >= 3)
    work = Work(store, alone=True)
    batch = only(store)
    if batch.status is Status.IN_PROGRESS:
        if cancel:
            store.change(batch.id, lambda known: known.cancel(store.now()))
        else:
            time_out(work, batch)
    batch = only(store)
    if batch.status in SEALING:
        assert work.take(batch.id)
        seal(work, batch)


def cancelled(store: BatchStore, _: Notice) -> None:
    stopped_early(store, cancel=True)


def expired(store: BatchStore, _: Notice) -> None:
    stopped_early(store, cancel=False)


SCENARIOS = {
    "whole": (whole, "completed", {True: 5, False: 1}),
    "refused": (refused, "failed", {}),
    "cancelled": (cancelled, "cancelled", {True: 2, False: 4}),
    "expired": (expired, "expired", {True: 2, False: 4}),
}
FIRST = {"expired": 35}
"""The first operation to interrupt; those before it are the same as in `cancelled`."""


# --- what must hold -------------------------------------------------------------------------------


def check_always(store: BatchStore) -> dict[str, bytes]:
    """Check what must hold after any interruption; return the records of completed lines."""
    for file in store.files("", "", 100) or ():
        assert store.storage.path(file.id).stat().st_size == file.length_bytes, file
    batch = store.batch("", "batch_1")
    if batch is None:
        return {}
    done = {e.custom_id: e.record or b"" for e in all_lines(store, batch.id) if e.ok is not None}
    if batch.status in (Status.IN_PROGRESS, *SEALING):
        assert len(done) == batch.counts.total - batch.counts.left
    if batch.status in ENDED:
        assert not done, "lines of a batch that has ended are in its files"
        done = {each["custom_id"]: raw for each, raw in output(store, batch)}
    return done


def output(store: BatchStore, batch: Batch) -> list[tuple[dict, bytes]]:
    ids = [each for each in (batch.output_file_id, batch.error_file_id) if each]
    raw = [line for each in ids for line in store.storage.path(each).read_bytes().splitlines(True)]
    return [(json.loads(line), line) for line in raw]


def check_end(store: BatchStore, status: str, files: dict[bool, int]) -> None:
    batch = only(store)
    assert batch.status == status, batch
    assert len(store.files("", "", 100) or ()) == 1 + len(files)
    for ok, file_id in ((True, batch.output_file_id), (False, batch.error_file_id)):
        lines = store.storage.path(file_id).read_bytes().splitlines() if file_id else []
        assert len(lines) == files.get(ok, 0), (ok, lines)
    if files:
        counts = Counter(each["custom_id"] for each, _ in output(store, batch))
        assert counts == {f"c{number}": 1 for number in range(LINES)}, counts
        assert (batch.counts.completed, batch.counts.failed) == (files[True], files[False])
        assert batch.usage.output_tokens == 2 * files[True]


# --- the interruptions ----------------------------------------------------------------------------


def killer(at: int) -> Notice:
    """A notice that kills this process at operation number `at`, counted from 1."""
    left = at

    def notice(_: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return notice


class Place:
    """The durable state: a folder, and optionally a database elsewhere."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._folder, self._database_url = folder, database_url
        if database_url:
            engine = create_engine(make_url(database_url).set(drivername="postgresql+psycopg"))
            with engine.begin() as connection:
                connection.execute(text("DROP TABLE IF EXISTS files, batches, lines, workers"))
            engine.dispose()

    def store(self, notice: Notice = unnoticed) -> BatchStore:
        url = self._database_url
        return BatchStore(self._folder, lambda: BORN_UNIX_S, notice, database_url=url)


def attempt(place: Place, scenario: str, at: int) -> bool:
    """Run a scenario in a process that dies at operation `at`; return whether it finished."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            notice = killer(at)
            store = place.store(notice)
            SCENARIOS[scenario][0](store, notice)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"{scenario} failed at {at}"
    return os.WIFEXITED(status)


def looked_at(place: Place) -> dict[str, bytes]:
    store = place.store()
    try:
        return check_always(store)
    finally:
        store.close()


def run(scenario: str, database_url: str, every: int) -> int:
    """Interrupt a scenario at each `every`th operation; return the number of operations."""
    _, status, files = SCENARIOS[scenario]
    at = FIRST.get(scenario, 1)
    while True:
        with tempfile.TemporaryDirectory(dir=MEMORY) as name:
            place = Place(Path(name), database_url)
            ended = attempt(place, scenario, at)
            done = looked_at(place)
            # It dies once more during recovery, at a point that differs from run to run.
            attempt(place, scenario, 1 + at % 7)
            again = looked_at(place)
            assert done.items() <= again.items(), "what was durable has changed"
            assert attempt(place, scenario, 0)
            assert again.items() <= looked_at(place).items(), "what was durable has changed"
            store = place.store()
            check_end(store, status, files)
            store.close()
        if ended:
            return at
        at += every


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS))
    parser.add_argument("--database", default="")
    parser.add_argument("--every", type=int, default=1)
    chosen = parser.parse_args()
    for each in chosen.scenarios:
        print(each, run(each, chosen.database, chosen.every), flush=True)  # noqa: T201
