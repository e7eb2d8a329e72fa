"""Every fault under load: no request is lost, duplicated or corrupted.

Each case sends the same 200 greedy requests to a cluster of emulated engines, whose text depends on
the prompt alone, injects one fault meanwhile, and compares every answer with an undisturbed run.
Requests are sent until the fault has affected some; a case fails if it affects none.
"""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chaos.clients import BEFORE, REQUESTS
from tests.chaos.faulty_proxy import NONE, Fault
from tests.chaos.summary import ROWS, judge
from tests.chaos.world import HELD, SCHEDULERS, VICTIM, Load, World, world
from tests.processes import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

HOUR_S = 3600.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp") as folder:
        async with world(Path(folder)) as made:
            request.config.stash[ROWS] = made.rows
            yield made


Inject = Callable[[World, Load], Awaitable[int]]
"""Injects a fault while the load goes on, and undoes it; returns how many requests it met."""


def depending(place: World, name: str) -> Callable[[], Awaitable[int]]:
    """A function that returns how many requests depend on a component."""
    return lambda: place.depending(name)


def hits(place: World, at_least: int = 1) -> Callable[[], Awaitable[int]]:
    """A function that returns how many requests have met the proxy's fault; 0 below `at_least`."""

    async def found() -> int:
        return place.proxy.hits if place.proxy.hits >= at_least else 0

    return found


def met(fault: Fault) -> Inject:
    """All requests to the victim meet `fault`, until the last one has its answer."""

    async def inject(place: World, load: Load) -> int:
        place.proxy.set(fault)
        await load.until(hits(place))
        await load.finish()
        return place.proxy.hits

    return inject


async def nothing(place: World, load: Load) -> int:
    await load.finish()
    return len(load.sent)


async def port_closed(place: World, load: Load) -> int:
    found = await load.until(depending(place, VICTIM))
    await place.proxy.stop()
    await load.finish()
    await place.proxy.start()
    return found


async def network_cut(place: World, load: Load) -> int:
    found = await load.until(depending(place, VICTIM))
    place.proxy.cut()
    await load.finish()
    return found


def killed_while(fault: Fault) -> Inject:
    """SIGKILL the engine when `fault` holds back answers to some of its requests."""

    async def inject(place: World, load: Load) -> int:
        before = place.running.component(VICTIM)
        place.proxy.set(fault)
        found = await load.until(hits(place, HELD))
        place.running.kill(VICTIM)
        place.proxy.set(NONE)
        await load.finish()
        await restarted(place, VICTIM, before["pid"])
        return found

    return inject


def killed(name: str) -> Inject:
    """SIGKILL a component while requests depend on it."""

    async def inject(place: World, load: Load) -> int:
        before = place.running.component(name)
        found = await load.until(depending(place, name))
        place.running.kill(name)
        await load.finish()
        await restarted(place, name, before["pid"])
        return found

    return inject


async def stopped(place: World, load: Load) -> int:
    found = await load.until(depending(place, VICTIM))
    place.running.pause(VICTIM)
    try:
        await load.finish()
    finally:
        place.running.resume(VICTIM)
    return found


async def clock_jump(place: World, load: Load) -> int:
    try:
        for offset_s in (HOUR_S, -HOUR_S):
            place.set_clock(offset_s)
            await load.send(60, 1.0)
        await load.finish()
    finally:
        place.set_clock(0.0)
    return len(load.sent) - BEFORE


async def full_disk(place: World, load: Load) -> int:
    """Meanwhile a component is killed; the supervisor cannot write down its restart."""
    before = place.running.component("tagger")
    assert place.fill_disk(full=True) > 0
    try:
        await load.send(60, 1.0)
        place.running.kill("tagger")
        await load.finish()
    finally:
        place.fill_disk(full=False)
    await restarted(place, "tagger", before["pid"])
    return len(load.sent) - BEFORE


async def rolling_restart(place: World, load: Load) -> int:
    names = [*SCHEDULERS, "tagger", *(f"engine-{index}" for index in range(3))]
    share, found = (REQUESTS - BEFORE) // len(names), 0
    for name in names:
        before = place.running.component(name)
        found += await load.until(depending(place, name))
        place.end(name)
        await load.send(share, 1.0)
        await restarted(place, name, before["pid"])
    await load.finish()
    return found


async def restarted(place: World, name: str, pid: int) -> None:
    await wait_until(lambda: place.running.component(name)["pid"] not in (0, pid), 100.0)
    await place.heal()


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, and whether clients must ask again because the process they connect to dies."""

    inject: Inject
    asks_again: bool = False
    brief: bool = False
    """Whether `make test-chaos-brief` includes it, which tries one fault of each kind."""


CASES = {
    "nothing": Case(nothing, brief=True),
    "slow drip": Case(met(Fault(drips=True))),
    "status 503": Case(met(Fault(status=503))),
    "status 429": Case(met(Fault(status=429)), brief=True),
    "status 500": Case(met(Fault(status=500))),
    "connection reset": Case(met(Fault(resets=True)), brief=True),
    "port closed": Case(port_closed),
    "hang before the first byte": Case(met(Fault(withholds=True)), brief=True),
    "network cut": Case(network_cut),
    "SIGSTOP of an engine": Case(stopped),
    "SIGKILL before the first token": Case(killed_while(Fault(withholds=True))),
    "SIGKILL after the first token": Case(killed_while(Fault(withholds_rest=True)), brief=True),
    "SIGKILL of a predictor": Case(killed(f"{VICTIM}.predictor")),
    "SIGKILL of the tagger": Case(killed("tagger")),
    "SIGKILL of a replica": Case(killed("scheduler-0"), asks_again=True, brief=True),
    "clock steps by an hour": Case(clock_jump),
    "full disk": Case(full_disk),
    "rolling restart of everything": Case(rolling_restart),
    "hang after the first token": Case(met(Fault(withholds_rest=True))),
}


PARAMETERS = [
    pytest.param(name, marks=[pytest.mark.brief] if case.brief else [])
    for name, case in CASES.items()
]


@pytest.mark.parametrize("name", PARAMETERS)
async def test_no_request_is_lost_doubled_or_garbled(place: World, name: str) -> None:
    case = CASES[name]
    load = Load(place, retries=case.asks_again)
    try:
        await load.send(BEFORE, 1.0)
        found = await case.inject(place, load)
        seen = await load.finish()
    finally:
        await load.close()
        await place.heal()
        await place.restart_victim()
    row = judge(name, found, load.sent, seen, place.truth)
    place.rows.append(row)
    if place.truth is None:
        assert name == "nothing", "the undisturbed run comes first"
        place.truth = [each.text for each in seen]
    errors = {each.error for each in seen if each.error}
    assert row.flawless, f"{row}\n{errors}\n{place.running.logs()}"
    assert row.hits > 0, "the fault met no request"
    assert case.asks_again or row.asked_again == 0
