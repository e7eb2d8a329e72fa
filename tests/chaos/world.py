"""A whole cluster with one engine behind a proxy that injects faults."""

import asyncio
import json
import resource
import signal
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from os import environ, kill
from pathlib import Path
from typing import Any

import aiohttp

from foretell.services.process.folders import free_ports
from tests.chaos.clients import REQUESTS, Asked, Seen, requests, send, session
from tests.chaos.faulty_proxy import NONE, FaultyProxy
from tests.chaos.summary import Row
from tests.e2e.cluster import Cluster, cluster
from tests.processes import processes_with, wait_until

ENGINES = 3
VICTIM = "engine-0"
"""The engine behind the proxy."""
SCHEDULERS = ("scheduler-0", "scheduler-1")
HELD = 3
"""Requests that must depend on a process before a fault hits it."""
RECOVERY_S = 100.0
_PAUSE_S = 0.015
SILENCE_S = 10.0
"""Time after which an engine that falls silent in mid-answer is given up."""
SEATS = 6
ARGS = f"--speedup 2 --max-num-seqs {SEATS}"
"""So few seats that every engine is needed: one that counts as slow gets requests nevertheless."""
_CLOCK = Path(__file__).parent / "clock"


@dataclass
class World:
    """The cluster that faults are injected into."""

    running: Cluster
    proxy: FaultyProxy
    clock: Path
    asked: list[Asked] = field(default_factory=list)
    truth: list[str] | None = None
    """The texts of an undisturbed run."""
    rows: list[Row] = field(default_factory=list)

    def set_clock(self, offset_s: float) -> None:
        """Set the wall clocks of all processes of the cluster to this offset."""
        with self.clock.open("r+b") as file:
            file.write(struct.pack("<d", offset_s))

    def fill_disk(self, *, full: bool) -> int:
        """If `full`, let no process of the cluster write to files; return how many processes."""
        pids = processes_with(str(self.running.run_dir))
        for pid in pids:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if full else hard, hard))
        return len(pids)

    def end(self, name: str) -> None:
        """SIGTERM one component, as an orchestrator does."""
        kill(self.running.component(name)["pid"], signal.SIGTERM)

    async def heal(self) -> None:
        """Undo every fault, and wait until the cluster is whole."""
        self.proxy.set(NONE)
        self.proxy.mend()
        await wait_until(self.running.ready, RECOVERY_S)
        for name in SCHEDULERS:
            await self.until_health(name, healthy=True)

    async def restart_victim(self) -> None:
        """Make the victim look restarted, because a failed engine is avoided for up to a minute."""
        await self.proxy.stop()
        for name in SCHEDULERS:
            await self.until_health(name, healthy=False)
        await self.proxy.start()
        for name in SCHEDULERS:
            await self.until_health(name, healthy=True)

    async def status(self, scheduler: str) -> dict[str, Any]:
        """A replica's /status."""
        address = self.running.component(scheduler)["address"]
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{address}/status") as response,
        ):
            found: dict[str, Any] = await response.json()
        return found

    async def depending(self, name: str) -> int:
        """The number of requests that depend on a component; 0 if they are fewer than `HELD`."""
        replicas = {each: await self.status(each) for each in SCHEDULERS}
        if name in replicas:
            found = replicas[name]["in_progress"]
        elif name == "tagger":
            found = sum(each["in_progress"] for each in replicas.values())
        else:
            engine = name.removesuffix(".predictor")
            held = [i for each in replicas.values() for i in each["instances"]]
            found = sum(i["outstanding"] for i in held if i["instance_id"] == engine)
        return int(found) if found >= HELD else 0

    async def until_health(self, scheduler: str, *, healthy: bool) -> None:
        """Wait until a replica considers all engines healthy, or else at least one unhealthy."""
        async with asyncio.timeout(RECOVERY_S):
            while True:
                instances = (await self.status(scheduler))["instances"]
                if healthy == all(each["healthy"] for each in instances):
                    return
                await asyncio.sleep(0.1)


class Load:
    """The requests of one case: all of the world's, repeated if a case needs more."""

    def __init__(self, world: World, *, retries: bool) -> None:
        self.sent: list[Asked] = []
        self._world, self._retries = world, retries
        self._tasks: list[asyncio.Task[Seen]] = []
        self._session = session(world.running.endpoint)

    def _send(self) -> None:
        asked = self._world.asked[len(self.sent) % REQUESTS]
        self.sent.append(asked)
        work = send(self._session, asked, retries=self._retries)
        self._tasks.append(asyncio.create_task(work))

    async def send(self, count: int, over_s: float) -> None:
        """Send the next `count` requests, evenly over `over_s` seconds."""
        for _ in range(count):
            self._send()
            await asyncio.sleep(over_s / count)

    async def until(self, found: Callable[[], Awaitable[int]]) -> int:
        """Keep sending until `found` returns a number above 0; return it."""
        sending = asyncio.create_task(self._send_on())
        try:
            async with asyncio.timeout(RECOVERY_S):
                while True:
                    if count := await found():
                        return count
                    await asyncio.sleep(0.005)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_on(self) -> None:
        """Send at the usual pace, and always keep so many in progress that all engines are needed,
        also on a machine that is too busy for that pace."""
        while True:
            self._send()
            await asyncio.sleep(_PAUSE_S)
            while sum(not each.done() for each in self._tasks) < ENGINES * SEATS + HELD:
                self._send()

    async def finish(self, over_s: float = 2.0) -> list[Seen]:
        """Send the remaining requests, and wait for all answers."""
        left = REQUESTS - len(self.sent)
        if left > 0:
            await self.send(left, over_s)
        return await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Cancel unanswered requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()


def instances(run_dir: Path, ports: Sequence[int]) -> str:
    """The list of instances for schedulers: the engines at `ports`, with their predictors."""
    known = [
        {
            "instance_id": f"engine-{index}",
            "url": f"http://127.0.0.1:{port}",
            "predictor": f"unix:{run_dir}/engine-{index}.predictor.sock",
        }
        for index, port in enumerate(ports)
    ]
    return json.dumps(known)


@asynccontextmanager
async def world(run_dir: Path) -> AsyncIterator[World]:
    """Three engines, two schedulers, sidecars and tagger; `run_dir` must have a short name."""
    port = free_ports("127.0.0.1", ENGINES)[0]
    file, clock = run_dir / "file.yaml", run_dir / "clock"
    clock.write_bytes(struct.pack("<d", 0.0))
    engines = {"kind": "emulated", "engines": ENGINES, "port": port, "args": ARGS}
    schedulers = {"request_timeout_s": SILENCE_S}
    file.write_text(json.dumps({"engines": [engines], "schedulers": schedulers}))
    proxy = FaultyProxy(port)
    await proxy.start()
    ports = [proxy.port, *(port + index for index in range(1, ENGINES))]
    settings = {
        "FORETELL_SCHEDULER_INSTANCES": instances(run_dir, ports),
        "CHAOS_CLOCK": str(clock),
        "PYTHONPATH": f"{_CLOCK}:{environ.get('PYTHONPATH', Path.cwd())}",
    }
    running = cluster(run_dir, f"--cluster={file}", **settings)
    found = await asyncio.to_thread(running.__enter__)
    made = World(found, proxy, clock)
    try:
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{found.endpoint}/v1/models") as models,
        ):
            made.asked = requests((await models.json())["data"][0]["id"], seed=16)
        yield made
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)
        await proxy.stop()
