"""One active provisioner by a row of a database: the lease is passed on and never shared."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from postgres import Postgres, postgres

from foretell.services.provisioner.database_lease import DatabaseLease
from foretell.services.provisioner.lease import LEASE_S, VALID_S, LeaseLost
from tests.processes import read_facts, wait_until

Make = Callable[["Clock"], DatabaseLease]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """A function that makes replicas which share a database with a free lease."""
    sqlite = request.param == "sqlite"
    where = tmp_path / "leases.sqlite" if sqlite else request.getfixturevalue("server").url
    made: list[DatabaseLease] = []

    def replica(clock: Clock) -> DatabaseLease:
        made.append(DatabaseLease(where, f"replica-{len(made)}", clock=clock))
        return made[-1]

    yield replica
    for lease in made:
        lease.release()
        lease.close()


def may_write(lease: DatabaseLease) -> bool:
    try:
        with lease.guarded():
            return True
    except LeaseLost:
        return False


def test_one_holds_it_and_another_gets_it_when_it_is_given_back(make: Make) -> None:
    first, second = make(Clock()), make(Clock())
    assert [first.take(), first.take(), second.take()] == [True, True, False]
    assert (may_write(first), may_write(second)) == (True, False)
    epoch = first.epoch
    first.release()
    assert second.take()
    assert (first.epoch, second.epoch) == (0, epoch + 1)
    assert not first.take()


def test_who_hangs_writes_nothing_before_it_is_passed_over(make: Make) -> None:
    mine, theirs = Clock(), Clock()
    theirs.now_s = 5e6
    hung, standby = make(mine), make(theirs)
    for _ in range(3):
        assert hung.take()
        assert not standby.take()
        mine.now_s += LEASE_S / 2
        theirs.now_s += LEASE_S
    mine.now_s += VALID_S
    assert not may_write(hung)
    theirs.now_s += 0.1
    assert standby.take()
    assert not hung.take()


def test_of_many_at_once_one_gets_it(make: Make) -> None:
    leases = [make(Clock()) for _ in range(6)]
    with ThreadPoolExecutor(len(leases)) as pool:
        taken = list(pool.map(lambda lease: lease.take(), leases))
    assert sum(taken) == 1
    assert [may_write(lease) for lease in leases] == taken


def test_a_database_that_is_away_leaves_it_for_a_while(server: Postgres) -> None:
    clock = Clock()
    lease, early = DatabaseLease(server.url, "a", clock=clock), DatabaseLease(server.url, "b")
    assert lease.take()
    epoch = lease.epoch
    server.kill()
    try:
        clock.now_s += VALID_S
        assert lease.take()
        clock.now_s += 0.1
        assert not lease.take()
        assert not may_write(lease)
        assert not early.take(), "it never saw the database"
    finally:
        server.start()
    assert lease.take()
    assert lease.epoch == epoch + 1, "in between another one may have been active"
    assert not early.take()
    lease.release()
    assert early.take()
    early.release()
    for each in (lease, early):
        each.close()


async def test_replicas_with_folders_of_their_own_follow_each_other(
    server: Postgres, tmp_path: Path
) -> None:
    running = []
    try:
        for name in ("a", "b"):
            ready = tmp_path / f"{name}.ready"
            flags = (f"--folder={tmp_path / name}", f"--lease={server.url}", "--port=0")
            command = (sys.executable, "-m", "foretell.services.provisioner", *flags)
            process = await asyncio.create_subprocess_exec(*command, f"--ready-file={ready}")
            running.append(process)
            await wait_until(lambda ready=ready: read_facts(ready))
        urls = [read_facts(tmp_path / f"{name}.ready")["url"] for name in ("a", "b")]

        async def active() -> list[bool]:
            async with httpx.AsyncClient(trust_env=False) as client:
                return [json.loads((await client.get(f"{u}/status")).text)["active"] for u in urls]

        async with asyncio.timeout(60.0):
            while sum(await active()) != 1:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.05)
        first = (await active()).index(True)
        running[first].send_signal(signal.SIGTERM)
        assert await running[first].wait() == 0
        del urls[first]
        async with asyncio.timeout(60.0):
            while await active() != [True]:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.05)
    finally:
        for process in running:
            if process.returncode is None:
                process.terminate()
            await process.wait()
