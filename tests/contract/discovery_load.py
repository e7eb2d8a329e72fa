"""`python discovery_load.py PODS`: one scheduler's pool follows PODS pods that come and go.

Prints the costs: CPU seconds of the process that follows them, and how much its memory grew after
the first tenth of the pods. The API server is a separate process.
"""

import asyncio
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
from certificates import make_certificate
from fake_watch import ApiServer, make_credentials, pod
from prometheus_client import CollectorRegistry

from foretell.config.instances import Members
from foretell.services.process.kubernetes import KubernetesApi
from foretell.services.scheduler.discovery import Discovery
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing.pool import Pool

ALIVE = 150
PAUSE_EVERY = 50
TENTH = "marker-tenth"


def serve(pods: int, ready: Connection) -> None:
    asyncio.run(_serve(pods, ready))


async def _serve(pods: int, ready: Connection) -> None:
    server = ApiServer()
    starting, ready_pod = pod("a", ready=False), pod("a")
    ending = pod("a", ready=False, terminating=True)
    async with server.serving():
        ready.send(server.url)
        while len(server.requests) < 2:  # noqa: ASYNC110 - it has listed, and watches
            await asyncio.sleep(0.01)
        for index in range(pods + ALIVE):
            if index < pods:
                server.put(numbered(starting, index))
                server.put(numbered(ready_pod, index))
            if index >= ALIVE:
                server.put(numbered(ending, index - ALIVE))
                server.remove(f"pod-{index - ALIVE}")
            if index == pods // 10:
                server.put(pod(TENTH))
            if index % PAUSE_EVERY == 0:
                await asyncio.sleep(0.02)
        server.remove(TENTH)
        await asyncio.sleep(600)


def numbered(of: dict[str, Any], index: int) -> dict[str, Any]:
    """A copy of the pod `of` with its own name and address."""
    address = f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"
    metadata = {**of["metadata"], "name": f"pod-{index}"}
    return {**of, "metadata": metadata, "status": {**of["status"], "podIP": address}}


def resident_mib() -> float:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / 2**20


async def follow(pods: int, url: str, folder: Path) -> None:
    certificate, _ = make_certificate(folder)
    api = KubernetesApi(url, make_credentials(folder / "account", Path(certificate)))
    async with aiohttp.ClientSession() as client:
        pool = Pool(
            "[]",
            client,
            SchedulerMetrics(CollectorRegistry()),
            engine_api_key="",
            health_interval_s=1,
            health_timeout_s=1,
            health_failures=1,
        )
        seen, first_mib = set[str](), 0.0
        over = asyncio.Event()

        def take(members: Members) -> None:
            nonlocal first_mib
            pool.take(members)
            names = {each.instance_id for each in members.instances}
            if TENTH in names and not first_mib:
                first_mib = resident_mib()
            seen.update(names & {TENTH})
            if seen and not names:
                over.set()

        discovery = Discovery("pods:app=engine", take, api)
        began_s = time.process_time()
        following = asyncio.create_task(discovery.run())
        await over.wait()
        cpu_s = time.process_time() - began_s
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await api.close()
        left, grown = len(pool.instances), resident_mib() - first_mib
        sys.stdout.write(f"cpu_s={cpu_s:.2f} left={left} grown_mib={grown:.1f}\n")


def main() -> None:
    pods = int(sys.argv[1])
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(pods, there), daemon=True)
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(follow(pods, here.recv(), Path(folder)))
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
