"""One active provisioner by a Kubernetes Lease, against a fake API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from fake_kubernetes import FakeKubernetes, serving

from foretell.services.process.kubernetes import KubernetesApi
from foretell.services.provisioner.kubernetes_lease import KubernetesLease
from foretell.services.provisioner.lease import LEASE_S, VALID_S, LeaseLost


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Replicas:
    """Replicas with separate clocks, and their common API server."""

    def __init__(self, server: FakeKubernetes, api: KubernetesApi) -> None:
        self.server = server
        self._api = api
        self._made = 0

    def make(self, clock: Callable[[], float]) -> KubernetesLease:
        self._made += 1
        loop = asyncio.get_running_loop()
        holder = f"replica-{self._made}"
        return KubernetesLease("vllm-provisioner", holder, self._api, loop, clock=clock)


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    server = FakeKubernetes()
    async with serving(server, tmp_path):
        api = KubernetesApi(server.url, server.make_credentials(tmp_path / "account"))
        yield Replicas(server, api)
        await api.close()


async def take(lease: KubernetesLease) -> bool:
    return await asyncio.to_thread(lease.take)


def may_write(lease: KubernetesLease) -> bool:
    try:
        with lease.guarded():
            return True
    except LeaseLost:
        return False


async def test_one_holds_it_and_another_gets_it_when_it_is_given_back(replicas: Replicas) -> None:
    clock = Clock()
    first, second = replicas.make(clock), replicas.make(clock)
    assert [await take(first), await take(first), await take(second)] == [True, True, False]
    assert (may_write(first), may_write(second)) == (True, False)
    spec = replicas.server.lease
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("replica-1", 15)
    await asyncio.to_thread(first.release)
    assert await take(second)
    assert (first.epoch, second.epoch) == (0, 2)
    assert not await take(first)


async def test_who_hangs_writes_nothing_before_it_is_passed_over(replicas: Replicas) -> None:
    mine, theirs = Clock(), Clock()
    hung, standby = replicas.make(mine), replicas.make(theirs)
    assert await take(hung)
    assert not await take(standby)
    mine.now_s += VALID_S + 0.1
    assert not may_write(hung)
    theirs.now_s += LEASE_S
    assert not await take(standby)
    theirs.now_s += 0.1
    assert await take(standby)
    assert standby.epoch == 2
    assert not await take(hung)


async def test_renewals_keep_it_however_clocks_differ(replicas: Replicas) -> None:
    mine, theirs = Clock(), Clock()
    theirs.now_s = 5e6
    holder, standby = replicas.make(mine), replicas.make(theirs)
    for _ in range(10):
        assert await take(holder)
        assert not await take(standby)
        mine.now_s += LEASE_S / 2
        theirs.now_s += LEASE_S / 2


async def test_of_two_at_once_one_gets_it(replicas: Replicas) -> None:
    clock = Clock()
    leases = [replicas.make(clock) for _ in range(5)]
    taken = await asyncio.gather(*(take(lease) for lease in leases))
    assert sum(taken) == 1
    assert [lease.epoch for lease in leases if lease.epoch] == [1]


async def test_an_api_server_that_is_away_leaves_it_for_a_while(replicas: Replicas) -> None:
    clock = Clock()
    lease = replicas.make(clock)
    assert await take(lease)
    tokens, replicas.server.tokens = replicas.server.tokens, set()
    clock.now_s += VALID_S
    assert await take(lease)
    clock.now_s += 0.1
    assert not await take(lease)
    assert not may_write(lease)
    replicas.server.tokens = tokens
    assert await take(lease)
    assert lease.epoch == 2, "in between another one may have been active"
