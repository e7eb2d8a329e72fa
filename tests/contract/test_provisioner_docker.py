"""Engines in containers, started and stopped through Docker's API, with failures at every step."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from fake_docker import FakeDocker, serving

from foretell.config.instances import InstanceConfig, parse_members
from foretell.provision import InstancePhase, ProvisionDecision
from foretell.services.provisioner import api, places
from foretell.services.provisioner.docker import DockerDriver
from foretell.services.provisioner.driver import DriverFailed, Orders
from foretell.services.provisioner.lease import FileLease
from foretell.services.provisioner.places import EnginePlaces
from foretell.services.provisioner.tuning import ProvisionerTuning

PLACES = [InstanceConfig(f"engine-{i}", f"http://engine-{i}:8000") for i in range(2)]
NAMES = [place.instance_id for place in PLACES]


@asynccontextmanager
async def driving(docker: FakeDocker, folder: Path) -> AsyncIterator[DockerDriver]:
    socket = folder / "docker.sock"
    driver = DockerDriver(docker.project, NAMES, socket=str(socket))
    try:
        async with serving(docker, socket):
            yield driver
    finally:
        await driver.close()


def of(name: str) -> set[str]:
    return {f"p-{name}-False", f"p-{name}-predictor-False"}


def created() -> FakeDocker:
    docker = FakeDocker()
    for name in NAMES:
        docker.add(name)
        docker.add(f"{name}-predictor")
    return docker


async def test_an_engine_and_its_predictor_are_started_and_stopped_together(tmp_path: Path) -> None:
    docker = created()
    docker.add("scheduler-0", "running")
    docker.add("engine-0", "running", project="another")
    docker.add("engine-0", "running", oneoff=True)  # of `docker compose run`
    others = docker.running()
    async with driving(docker, tmp_path) as driver:
        assert await driver.find() == {}
        await driver.start("engine-1")
        await driver.start("engine-1")
        assert docker.running() == others | of("engine-1")
        assert await driver.find() == {"engine-1": True}
        docker.states["p-engine-1-False"] = "exited"  # it has crashed
        assert await driver.find() == {"engine-1": False}
        await driver.start("engine-1")
        assert docker.running() == others | of("engine-1")
        await driver.end("engine-1")
        await driver.end("engine-1")
        assert (docker.running(), await driver.find()) == (others, {})
    assert all(call.endswith(("/start", "/stop")) for call in docker.orders())


async def test_what_docker_refuses_is_told(tmp_path: Path) -> None:
    docker = created()
    del docker.labels["p-engine-1-predictor-False"]
    async with driving(docker, tmp_path) as driver:
        with pytest.raises(DriverFailed, match="engine-1-predictor has no container: make it"):
            await driver.start("engine-1")
        answers: Iterator[Any] = iter(
            [
                web.json_response({"message": "no such GPU"}, status=500),
                web.Response(status=500, text="<html>"),
                web.json_response([{"Id": "x"}]),
                web.Response(status=302, headers={"location": "http://elsewhere/"}),
                web.Response(body=b" " * 100),
            ]
        )
        docker.before = lambda call: None if call.startswith("GET") else next(answers)
        with pytest.raises(DriverFailed, match="does not start engine-0: 500 no such GPU"):
            await driver.start("engine-0")
        docker.before = lambda call: next(answers)
        with pytest.raises(DriverFailed, match="500 without a reason"):
            await driver.find()
        with pytest.raises(DriverFailed, match="Labels"):
            await driver.find()
        with pytest.raises(DriverFailed, match="302"):
            await driver.find()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(api, "TUNING", ProvisionerTuning(platform_answer_bytes=99))
            with pytest.raises(DriverFailed, match="too long"):
                await driver.find()
    with pytest.raises((aiohttp.ClientError, RuntimeError)):
        await driver.find()


class Life:
    """One provisioner on a folder and a Docker API; a successor may follow at any time."""

    def __init__(self, docker: FakeDocker, folder: Path) -> None:
        self.docker, self.folder = docker, folder
        driver = DockerDriver(docker.project, NAMES, socket=str(folder / "docker.sock"))
        self.orders = Orders(driver)
        self.lease = FileLease(folder, "a")
        assert self.lease.take()
        no_client: Any = None  # nothing is asked over HTTP here
        self.fleet = EnginePlaces(
            folder, PLACES, ["m"], no_client, self.lease, lambda name, now_s: True, self.orders
        )

    async def act(self, **what: Any) -> None:
        await self.fleet.act(ProvisionDecision(0.0, 1, "strategy", "", None, 0.0, **what), 0.0)

    async def until_there_are(self, count: int) -> dict[str, str]:
        """Take turns until exactly `count` engines are wanted and run; return their phases."""
        async with asyncio.timeout(30):
            while True:
                seen = await self.fleet.look(0.0)
                phases = {each.config.instance_id: each.phase.value for each in seen}
                of_old = sum(phase != "draining" for phase in phases.values())
                await self.act(start=max(0, count - of_old))
                if self.docker.running() == {c for name in phases for c in of(name)} and (
                    len(phases) == of_old == count
                ):
                    return phases
                await asyncio.sleep(0.01)

    async def kill(self) -> None:
        """Break off what is in progress, without any cleanup."""
        await self.orders.close()
        self.lease.release()


async def whole_life(life: Life) -> None:
    """Start two engines, drain one, start it again, and drain all."""
    await life.until_there_are(2)
    await life.act(drain=("engine-0",))
    await life.until_there_are(1)
    await life.until_there_are(2)
    await life.act(drain=tuple(NAMES))
    await life.until_there_are(0)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(12))
async def test_killed_at_any_order_nothing_is_orphaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, when: str
) -> None:
    """The provisioner is killed when one order is not answered, whether or not it took effect."""
    docker = created()

    async def answers(client: object, url: str) -> bool:
        return f"p-{urlsplit(url).hostname}-False" in docker.running()

    monkeypatch.setattr(places, "answers", answers)
    async with serving(docker, tmp_path / "docker.sock"):
        docker.hangs_at = step, when
        first = Life(docker, tmp_path)
        living = asyncio.create_task(whole_life(first))
        hung = asyncio.create_task(docker.hung.wait())
        await asyncio.wait({living, hung}, return_when=asyncio.FIRST_COMPLETED)
        assert hung.done(), "there are not so many orders: nothing was shown"
        living.cancel()
        await asyncio.wait({living})
        await first.kill()

        second = Life(docker, tmp_path)
        wanted = {each.config.instance_id: each.phase for each in await second.fleet.look(0.0)}
        staying = [name for name, phase in wanted.items() if phase is not InstancePhase.DRAINING]
        assert list(await second.until_there_are(len(staying))) == staying
        listed = parse_members((tmp_path / "instances.json").read_text()).instances
        assert [each.instance_id for each in listed] == staying
        await whole_life(second)
        await second.kill()


async def test_what_runs_where_nothing_is_known_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = created()
    docker.states["p-engine-1-False"] = "running"  # its predictor does not run

    async def answers(client: object, url: str) -> bool:
        return True

    monkeypatch.setattr(places, "answers", answers)
    async with serving(docker, tmp_path / "docker.sock"):
        life = Life(docker, tmp_path)
        (seen,) = await life.fleet.look(0.0)
        assert (seen.config.instance_id, seen.phase) == ("engine-1", InstancePhase.READY)
        assert await life.until_there_are(1) == {"engine-1": "ready"}
        await life.kill()


async def test_without_docker_nothing_is_known_and_nothing_decided(tmp_path: Path) -> None:
    life = Life(created(), tmp_path)
    with pytest.raises(OSError, match="does not say what runs"):
        await life.fleet.look(0.0)
    assert not (tmp_path / "engines.json").exists()
    await life.kill()
