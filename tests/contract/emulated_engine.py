"""An emulated engine on a real socket, for the tests of this folder."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
from schedulers import until

from foretell.config import EmulatorSettings, PredictorSettings
from foretell.model import EngineSnapshot
from foretell.services.backend.emulator.__main__ import serve
from foretell.services.predictor.__main__ import serve as serve_predictor
from foretell.services.process.memory_log import LogReader, path_of
from foretell.v1 import snapshot_pb2
from foretell.wire import snapshot_from_proto

MODEL = "Llama-2-7b-hf"
DEADLINE_S = 30.0


@dataclass
class EmulatedEngine:
    url: str
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    snapshots: "Snapshots"


class Snapshots:
    """The snapshots that a predictor would receive."""

    def __init__(self, endpoint: str) -> None:
        self._log = LogReader(path_of(endpoint))
        self._log.reopen()
        self._first = self._log.read()  # shows the idle engine; from here on no snapshot is missed

    async def next(self) -> EngineSnapshot:
        payload, self._first = self._first, None
        async with asyncio.timeout(DEADLINE_S):
            while payload is None:
                await asyncio.sleep(0.001)
                payload = self._log.read()
        return snapshot_from_proto(snapshot_pb2.EngineSnapshot.FromString(payload))

    async def until(self, wanted: Callable[[EngineSnapshot], bool]) -> list[EngineSnapshot]:
        """All snapshots up to and with the first for which `wanted` holds."""
        heard = []
        async with asyncio.timeout(DEADLINE_S):
            while not heard or not wanted(heard[-1]):
                heard.append(await self.next())
        return heard

    def close(self) -> None:
        self._log.close()


async def written(ready: Path, given_up: Callable[[], bool]) -> None:
    """Wait until the engine has written its `ready` file, or `given_up` holds."""
    give_up_s = time.monotonic() + DEADLINE_S
    while not (os.path.exists(ready) or given_up()):  # noqa: ASYNC240 - no disk is waited for
        assert time.monotonic() < give_up_s, "the engine does not start"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running_engine(folder: Path, **settings: Any) -> AsyncIterator[EmulatedEngine]:
    """Serve an engine in this process until the block ends; `speedup` is 20 by default."""
    chosen = {"name": "engine-0", "speedup": 20.0, **settings}
    ready = folder / f"{chosen['name']}.json"
    endpoint = f"shm://{folder}/{chosen['name']}.snapshots"
    stop = asyncio.Event()
    wanted = EmulatorSettings(ready_file=str(ready), snapshot_endpoint=endpoint, **chosen)
    serving = asyncio.create_task(serve(wanted, stop))
    await written(ready, serving.done)
    if serving.done():
        await serving
    url = json.loads(ready.read_text())["url"]
    snapshots = Snapshots(endpoint)
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http,
            openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key="none", timeout=DEADLINE_S, max_retries=0
            ) as client,
        ):
            yield EmulatedEngine(url, http, client, snapshots)
    finally:
        snapshots.close()
        stop.set()
        await serving


def events(body: str) -> list[dict[str, Any]]:
    """The JSON events of a server-sent stream, which must end with `[DONE]`."""
    *lines, done, rest = body.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@contextlib.asynccontextmanager
async def engine_with_sidecar(
    folder: Path, number: int, port: int
) -> AsyncIterator[EmulatedEngine]:
    """An engine with one seat (`max_num_seqs`) on `port`, and its sidecar."""
    name, stop = f"engine-{number}", asyncio.Event()
    settings = PredictorSettings(
        name=name,
        listen=f"unix://{folder}/predictor-{number}",
        snapshot_endpoint=f"shm://{folder}/{name}.snapshots",
        profile="A30/Llama-2-7b-hf",
        ready_file=str(folder / f"predictor-{number}.ready"),
    )
    async with running_engine(
        folder, name=name, port=port, max_num_seqs=1, noise_ratio=0.0, speedup=1.0
    ) as engine:
        sidecar = asyncio.create_task(serve_predictor(settings, stop))
        try:
            await until(lambda: Path(settings.ready_file).exists() or sidecar.done())
            yield engine
        finally:
            stop.set()
            await sidecar
