"""Engines in a StatefulSet, against an API server made of the official client's models."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from certificates import make_certificate
from fake_kubernetes import FakeKubernetes, serving
from kubernetes.client import ApiClient, AppsV1Api, Configuration

from foretell.config.instances import InstanceConfig, parse_members
from foretell.provision import InstancePhase, ProvisionDecision
from foretell.services.process.kubernetes import KubernetesApi
from foretell.services.provisioner import places
from foretell.services.provisioner.database_lease import DatabaseLease
from foretell.services.provisioner.driver import DriverFailed, Orders
from foretell.services.provisioner.kubernetes import KubernetesDriver
from foretell.services.provisioner.lease import FileLease, ProvisionerLease
from foretell.services.provisioner.places import EnginePlaces

PLACES = [InstanceConfig(f"vllm-{i}", f"http://vllm-{i}.vllm:8000") for i in range(3)]
NAMES = [place.instance_id for place in PLACES]


@asynccontextmanager
async def driving(api: FakeKubernetes, folder: Path) -> AsyncIterator[KubernetesDriver]:
    async with serving(api, folder):
        driver = KubernetesDriver(
            "vllm", NAMES, KubernetesApi(api.url, api.make_credentials(folder / "account"))
        )
        try:
            yield driver
        finally:
            await driver.close()


async def test_the_number_of_pods_follows_and_the_official_client_sees_it(tmp_path: Path) -> None:
    api = FakeKubernetes()
    async with driving(api, tmp_path) as driver:

        def seen() -> int | None:
            config = Configuration(host=api.url)
            config.ssl_ca_cert = str(tmp_path / "foretell.pem")
            config.api_key = {"authorization": "Bearer first"}
            with ApiClient(config) as client:
                scale = AppsV1Api(client).read_namespaced_stateful_set_scale("vllm", "llm")
            found: int | None = scale.spec.replicas
            return found

        assert await driver.find() == {}
        await asyncio.gather(driver.start("vllm-1"), driver.start("vllm-0"))
        assert await driver.find() == {"vllm-0": True, "vllm-1": True}
        assert await asyncio.to_thread(seen) == 2
        await driver.end("vllm-0")  # no change: it is not the last pod
        assert api.replicas == 2
        await driver.end("vllm-1")
        assert await asyncio.to_thread(seen) == 1
        await driver.end("vllm-1")  # has ended already
        await driver.end("vllm-0")
        assert (api.replicas, api.refused) == (0, 0)


async def test_who_changes_it_at_the_same_time_is_not_overwritten(tmp_path: Path) -> None:
    api = FakeKubernetes()
    api.replicas = 2

    def meddle() -> None:
        api.replicas, api.version = 3, api.version + 1

    async with driving(api, tmp_path) as driver:
        api.meddle = meddle
        with pytest.raises(DriverFailed, match="409 the object has been modified"):
            await driver.end("vllm-1")
        assert api.replicas == 3


async def test_only_the_own_authority_is_believed(tmp_path: Path) -> None:
    api = FakeKubernetes()
    async with serving(api, tmp_path):
        account = api.make_credentials(tmp_path / "account")
        make_certificate(tmp_path, "stranger")
        (account / "ca.crt").write_bytes((tmp_path / "stranger.pem").read_bytes())
        driver = KubernetesDriver("vllm", NAMES, KubernetesApi(api.url, account))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await driver.find()
        await driver.close()


async def test_a_new_token_is_used_and_refusals_are_told(tmp_path: Path) -> None:
    api = FakeKubernetes()
    async with driving(api, tmp_path) as driver:
        api.tokens = {"second"}
        with pytest.raises(DriverFailed, match="401 Unauthorized") as refused:
            await driver.find()
        assert "first" not in str(refused.value)
        (tmp_path / "account" / "token").write_text("second")
        assert await driver.find() == {}
        stranger = KubernetesDriver("database", NAMES, KubernetesApi(api.url, tmp_path / "account"))
        for forbidden in (stranger.find(), stranger.start("vllm-0"), stranger.publish("[]")):
            with pytest.raises(DriverFailed, match=r"403 .*forbidden"):
                await forbidden
        await stranger.close()


async def test_the_list_is_published_when_it_differs(tmp_path: Path) -> None:
    api = FakeKubernetes()
    async with driving(api, tmp_path) as driver:
        for members in (None, "[]", '[{"instance_id": "vllm-0"}]'):
            api.members = "reset" if members else None
            await driver.publish("[1]")
            await driver.publish("[1]")
            assert api.members == "[1]"
    assert len(api.patches) == 3


class Life:
    """A provisioner; the test decides what its pods answer."""

    def __init__(
        self, driver: KubernetesDriver, folder: Path, lease: ProvisionerLease | None = None
    ) -> None:
        self.folder = folder
        self.orders = Orders(driver)
        self.lease = lease or FileLease(folder, "a")
        assert self.lease.take()
        no_client: Any = None  # nothing is asked over HTTP here
        self.fleet = EnginePlaces(
            folder, PLACES, ["m"], no_client, self.lease, self.is_empty, self.orders
        )
        self.empty = False

    def is_empty(self, name: str, now_s: float) -> bool:
        return self.empty

    async def turn(self, now_s: float = 0.0, **what: Any) -> dict[str, InstancePhase]:
        seen = await self.fleet.look(now_s)
        await self.fleet.act(ProvisionDecision(now_s, 1, "strategy", "", None, 0.0, **what), now_s)
        return {each.config.instance_id: each.phase for each in seen}

    async def until(self, api: FakeKubernetes, replicas: int) -> None:
        async with asyncio.timeout(20):
            while api.replicas != replicas or api.members != self.listed():
                await self.turn()
                await asyncio.sleep(0.01)

    def listed(self) -> str:
        return (self.folder / "instances.json").read_text()


async def test_the_last_pod_goes_first_and_schedulers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeKubernetes()
    answering = set(NAMES)

    async def answers(client: object, url: str) -> bool:
        return url.removeprefix("http://").split(".")[0] in answering

    monkeypatch.setattr(places, "answers", answers)
    async with driving(api, tmp_path) as driver:
        life = Life(driver, tmp_path / "state")
        await life.turn(start=3)
        await life.until(api, 3)
        await life.turn(drain=("vllm-0",))  # the least loaded, but only the last pod can go
        draining = [e.instance_id for e in parse_members(life.listed()).instances if e.draining]
        assert draining == ["vllm-2"]
        assert api.replicas == 3
        life.empty = True
        await life.until(api, 2)
        told = json.loads(api.members or "")["instances"]
        assert [each["instance_id"] for each in told] == ["vllm-0", "vllm-1"]

        # An engine that never gets ready is given up, but stays while a later one serves.
        answering.discard("vllm-0")
        (life.folder / "engines.json").write_text(
            '{"vllm-0": {"phase": "warming", "since_s": 1}, "vllm-1": {"phase": "ready"}}'
        )
        await life.turn(900.0, stop=("vllm-0",))
        state = json.loads((life.folder / "engines.json").read_text())
        assert state["vllm-0"] == {"phase": "warming", "since_s": 900.0}
        assert state["vllm-1"]["phase"] == "ready"
        # If the last engine does not answer yet, it is stopped without draining.
        await life.turn(drain=("vllm-1",))
        await life.until(api, 1)
        await life.turn(drain=("vllm-0",))
        await life.until(api, 0)
        await life.orders.close()
        life.lease.release()


async def test_a_successor_without_a_file_takes_over_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeKubernetes()
    api.replicas = 2

    async def answers(client: object, url: str) -> bool:
        return True

    monkeypatch.setattr(places, "answers", answers)
    async with driving(api, tmp_path) as driver:
        life = Life(driver, tmp_path / "state")
        assert await life.turn() == {"vllm-0": InstancePhase.READY, "vllm-1": InstancePhase.READY}
        await life.until(api, 2)
        await life.orders.close()
        life.lease.release()


@pytest.mark.parametrize("others", [0, 1])
async def test_a_file_from_before_another_replica_was_active_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Another replica with its own folder was active meanwhile, and started a third engine."""
    api = FakeKubernetes()
    where, folder = tmp_path / "leases.sqlite", tmp_path / "state"
    folder.mkdir()

    async def answers(client: object, url: str) -> bool:
        return True

    monkeypatch.setattr(places, "answers", answers)

    def lease() -> DatabaseLease:
        return DatabaseLease(where, "a")

    async with driving(api, tmp_path) as driver:
        before = Life(driver, folder, lease())
        await before.turn(start=2)
        await before.until(api, 2)
        before.lease.release()
        for _ in range(others):
            other = DatabaseLease(where, "b")
            assert other.take()
            api.replicas = 3
            other.release()
            other.close()
        after = Life(driver, folder, lease())
        assert len(await after.turn()) == 2 + others
        await after.until(api, 2 + others)
        for life in (before, after):
            await life.orders.close()
            life.lease.release()
            life.lease.close()  # type: ignore[attr-defined]
