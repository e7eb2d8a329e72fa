"""Kills two workers KILLS times at random while they work, and checks what must hold.

Run it as a program: `python workers.py FOLDER KILLS [DATABASE-URL]`. It forks, and must have only
one thread then.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from foretell.batch.states import Batch
from foretell.services.batch import executor, work
from foretell.services.batch.executor import Executor
from foretell.services.batch.store import BatchStore
from foretell.services.batch.target import BatchAnswer, TryAgain
from foretell.services.batch.uploads import Upload
from foretell.services.batch.work import Work

LINES = 60
OPEN_BATCHES = 2
URL = "/v1/completions"
WAIT_S = 90.0


def request(number: int) -> bytes:
    body = {"model": "m", "prompt": f"p{number}"}
    line = {"custom_id": f"c{number}", "method": "POST", "url": URL, "body": body}
    return json.dumps(line).encode() + b"\n"


def add_batch(store: BatchStore, name: str, lines: int) -> str:
    upload = Upload(store)
    upload.write(b"".join(map(request, range(lines))))
    file = upload.finish("", "input.jsonl")
    now = store.now()
    return store.add_batch(Batch(name, "", file.id, URL, "24h", now, now + 86_400)).id


class Moody:
    """Answers after a random delay; a tenth of the requests must be tried again."""

    async def models(self, tenant: str) -> Collection[str] | None:
        return None

    async def send(self, batch: Batch, body: bytes, request_id: str) -> BatchAnswer:
        await asyncio.sleep(random.random() * 0.01)
        if random.random() < 0.1:
            raise TryAgain("busy")
        said = {"said": json.loads(body)["prompt"], "usage": {"completion_tokens": 2}}
        return BatchAnswer(200, request_id, json.dumps(said).encode())


class Kills:
    """The parent of the workers. It never forks while it has the store open."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._folder, self._database_url = folder, database_url
        self._workers: list[int] = []
        self._ids: list[str] = []

    @contextmanager
    def _opened(self) -> Iterator[BatchStore]:
        store = BatchStore(self._folder, database_url=self._database_url)
        try:
            yield store
        finally:
            store.close()

    def _begin_worker(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            store = BatchStore(self._folder, database_url=self._database_url)
            asyncio.run(Executor(Work(store), Moody(), lambda: 8).run(asyncio.Event()))
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)

    def run(self, kills: int) -> int:
        """Kill a worker `kills` times; return the number of batches."""
        rng = random.Random(kills)
        try:
            self._add_batches()
            self._workers = [self._begin_worker() for _ in range(2)]
            for _ in range(kills):
                time.sleep(rng.random() * 0.1)
                victim = rng.randrange(2)
                pid = self._workers.pop(victim)
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                assert os.WIFSIGNALED(status), "a worker has failed"
                self._add_batches()
                self._workers.insert(victim, self._begin_worker())
            self._wait()
        finally:
            for pid in self._workers:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        with self._opened() as store:
            for batch_id in self._ids:
                check(store, batch_id)
        return len(self._ids)

    def _add_batches(self) -> None:
        with self._opened() as store:
            for _ in range(OPEN_BATCHES - len(store.open_batches())):
                self._ids.append(add_batch(store, f"batch_{len(self._ids)}", LINES))

    def _wait(self) -> None:
        """Wait until all batches have ended."""
        deadline = time.monotonic() + WAIT_S
        with self._opened() as store:
            while left := store.open_batches():
                assert time.monotonic() < deadline, [batch.counts for batch in left]
                time.sleep(0.02)


def check(store: BatchStore, batch_id: str) -> None:
    """Check that a batch is complete: each of its lines was answered, and is in its output once."""
    batch = store.batch("", batch_id)
    assert batch is not None
    assert (batch.status, batch.counts.completed) == ("completed", LINES)
    assert batch.usage.output_tokens == 2 * LINES
    assert batch.output_file_id is not None
    with store.storage.opened(batch.output_file_id) as file:
        found = list(map(json.loads, file))
    said = [(each["custom_id"], each["response"]["body"]["said"]) for each in found]
    assert said == [(f"c{number}", f"p{number}") for number in range(LINES)]


if __name__ == "__main__":
    work.LEASE_S = executor.LEASE_S = 0.4
    executor._LOOK_S = executor._FIRST_PAUSE_S = 0.02
    count = int(sys.argv[2])
    batches = Kills(Path(sys.argv[1]), "".join(sys.argv[3:])).run(count)
    print(f"{count} kills, {batches} batches of {LINES} lines: each line once")  # noqa: T201
