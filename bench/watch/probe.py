"""Measures one kind of cost of the commit whose tree is on `PYTHONPATH`, with that tree's modules.

usage: probe.py KIND
Prints `{}` once it is ready; then, for each line that it reads, one JSON object with the figures of
one round by the names of their rows. Everything else that is printed goes to stderr.
"""

import asyncio
import gc
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

_SERVICES = "foretell.services"
try:
    import_module(_SERVICES)
except ImportError:  # a tree in which they are not yet parts of the package
    _SERVICES = "services"
    for _name in (_SERVICES, "tools"):
        sys.modules[f"foretell.{_name}"] = import_module(_name)

from foretell.services.process.children import Child  # noqa: E402

Figures = dict[str, float]
Measure = Callable[[], Awaitable[Figures]]

_START_S = 240.0
_ENGINES = 4
_SHORT, _STREAMS, _CHUNKS = 2_000, 128, 128
_PREDICTIONS = 200
_MODEL, _PLACED, _AT_ONCE = "emulated", 300, 10
_BLOCKS, _BLOCK = 9, 40
_TELLING_S = 0.02
"""Time for the plugin's thread to send the last steps."""


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of all threads of a process, to the nanosecond."""
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it has just ended
            total_ns += int((thread / "schedstat").read_text().split()[0])
    return 1e-9 * total_ns


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[Measure]:
    """CPU time of a scheduler that relays: per request, and per chunk of a stream."""
    from bench.fake_engine import compiled, start_fake_engines  # noqa: PLC0415
    from bench.gateway import compare, gateways  # noqa: PLC0415

    loads = {load.key: load for load in compare.LOADS}
    loads["short"] = replace(loads["short"], requests=_SHORT)
    for key in ("streams", "token_ids"):
        loads[key] = replace(loads[key], requests=_STREAMS, connections=_STREAMS, chunks=_CHUNKS)
    children: list[Child] = []
    async with AsyncExitStack() as stack:
        client = compiled(Path(compare.__file__).with_name("load.c"), folder)
        stack.push_async_callback(_stop, children)
        urls = await start_fake_engines(_ENGINES, compare.TICK_MS, folder, children)
        ours = next(each for each in gateways.GATEWAYS if each.key == "ours-1")
        running = await gateways.start(ours, Path(), urls, folder, children)
        pid = children[-1].pid

        def loaded_s(key: str) -> float:
            load, before_s = loads[key], cpu_s(pid)
            numbers = (running.port, load.connections, load.requests, load.chunks)
            command = [str(client), *map(str, numbers), gateways.PATH]
            subprocess.run(command, input=load.body(), stdout=subprocess.DEVNULL, check=True)
            return (cpu_s(pid) - before_s) / load.requests

        async def measure() -> Figures:
            took = {key: await asyncio.to_thread(loaded_s, key) for key in loads if key != "long"}
            chunk = {k: (took[k] - took["short"]) / _CHUNKS for k in ("streams", "token_ids")}
            return {
                "a request relayed, CPU µs": 1e6 * took["short"],
                "a chunk, CPU µs": 1e6 * chunk["streams"],
                "a chunk with token ids, CPU µs": 1e6 * chunk["token_ids"],
            }

        yield measure


@asynccontextmanager
async def predict(_: Path) -> AsyncIterator[Measure]:
    """CPU time of the compiled part of one prediction."""
    from foretell.tools.harness.cases import Size  # noqa: PLC0415
    from foretell.tools.harness.kernel import time_kernel  # noqa: PLC0415

    async def measure() -> Figures:
        return {
            f"a prediction, {size}, CPU µs": 1e6
            * median(time_kernel(size, _PREDICTIONS, lambda: None))
            for size in (Size(8, 0), Size(48, 50), Size(256, 256))
        }

    yield measure


def _running_services() -> Any:
    try:
        module = import_module("foretell.tools.harness.services")
    except ImportError:  # in earlier commits
        module = import_module("bench.processes")
    return module.running_services


@asynccontextmanager
async def placement(folder: Path) -> AsyncIterator[Measure]:
    """CPU time of a scheduler that places by predictions on emulated engines and relays."""
    import httpx  # noqa: PLC0415

    running_services = _running_services()
    async with (
        running_services(folder) as services,
        httpx.AsyncClient(trust_env=False, timeout=_START_S) as client,
    ):
        pairs = [await _emulated(services, index, f"--model-name={_MODEL}") for index in range(4)]
        scheduler = await _scheduler(services, pairs, "--policy=slo")
        url, numbers = f"{scheduler.facts['url']}/v1/chat/completions", count()

        async def ask(name: str) -> None:
            text = f"{name}: tell me about the {name} of these numbers"
            message = {"role": "user", "content": text}
            body = {"model": _MODEL, "messages": [message], "max_tokens": 16}
            (await client.post(url, json=body)).raise_for_status()

        async def measure() -> Figures:
            round_, before_s = next(numbers), cpu_s(scheduler.process.pid)
            for group in range(_PLACED // _AT_ONCE):
                names = [f"{round_}-{group}-{place}" for place in range(_AT_ONCE)]
                await asyncio.gather(*map(ask, names))
            took_s = cpu_s(scheduler.process.pid) - before_s
            return {
                f"a request placed among {len(pairs)} and relayed, CPU µs": 1e6 * took_s / _PLACED
            }

        yield measure


@asynccontextmanager
async def plugin(folder: Path) -> AsyncIterator[Measure]:
    """CPU time that the plugin adds to a step of vLLM's scheduler, in all threads."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: PLC0415

    from bench.overhead import plugin_steps as steps  # noqa: PLC0415
    from foretell.services.backend.vllm.plugin import ForetellScheduler  # noqa: PLC0415

    pause = (0.0,) if "pause_s" in inspect.signature(steps.TimedEngine).parameters else ()
    scheme = "shm" if "scheme" in inspect.signature(steps.time_steps).parameters else "ipc"

    def block_s(engine: Any) -> float:
        began_s = time.process_time()
        for _ in range(_BLOCK):
            engine.step()
        time.sleep(_TELLING_S)
        return time.process_time() - began_s

    def added_us(running: int, waiting: int, number: int) -> float:
        endpoint = f"{scheme}://{folder}/snapshots-{running}-{number}"
        os.environ["FORETELL_PLUGIN_SNAPSHOT_ENDPOINT"] = endpoint
        most = (_BLOCKS + 1) * _BLOCK
        stock, ours = (
            steps.TimedEngine(kind, running, waiting, most, *pause)
            for kind in (AsyncScheduler, ForetellScheduler)
        )
        with steps.subscriber(endpoint):
            gc.freeze()  # as vLLM does once its engine is up
            block_s(stock), block_s(ours)
            added = [block_s(ours) - block_s(stock) for _ in range(_BLOCKS)]
        if not ours.loop.scheduler.foretell.active:
            raise RuntimeError("the plugin switched itself off")
        ours.loop.close()
        gc.unfreeze()
        return 1e6 * median(added) / _BLOCK

    numbers = count()

    async def measure() -> Figures:
        return {
            f"a step of the plugin, {running} + {waiting}, CPU µs": added_us(
                running, waiting, next(numbers)
            )
            for running, waiting in ((8, 0), (48, 50))
        }

    yield measure


@asynccontextmanager
async def start(folder: Path) -> AsyncIterator[Measure]:
    """The cost of starting the services one after another until they serve, and their memory."""
    running_services = _running_services()
    numbers = count()

    async def measure() -> Figures:
        own = folder / str(next(numbers))  # a service may remember what it learnt in a folder
        own.mkdir()
        async with running_services(own) as services:
            began_s, started = time.monotonic(), {}
            pair = await _emulated(services, 0)
            started["emulated engine"], started["predictor"] = pair
            tagger = await services.start(
                "tagger",
                f"{_SERVICES}.tagger",
                f"--listen=unix:{own}/tagger.sock",
                start_timeout_s=_START_S,
            )
            started["tagger"] = tagger
            flag = f"--tagger={tagger.facts['address']}"
            started["scheduler"] = await _scheduler(services, [pair], flag)
            took_s = time.monotonic() - began_s
            found = {"start of four services, wall s": took_s}
            for name, service in started.items():
                found[f"start of the {name}, CPU s"] = cpu_s(service.process.pid)
                memory = service.process.memory_info().rss / 2**20
                found[f"memory of the {name}, MiB"] = memory
            return found

    yield measure


async def _emulated(services: Any, index: int, *flags: str) -> tuple[Any, Any]:
    """Start an emulated engine, which gets the flags, and its predictor."""
    from bench.processes import start_emulated, start_predictor  # noqa: PLC0415
    from foretell.tools.harness.kernel import PROFILE  # noqa: PLC0415

    engine = await start_emulated(services, index, PROFILE, *flags, start_timeout_s=_START_S)
    return engine, await start_predictor(services, index, PROFILE, start_timeout_s=_START_S)


async def _scheduler(services: Any, pairs: list[tuple[Any, Any]], *flags: str) -> Any:
    """Start a scheduler in front of engines and their predictors."""
    instances = [
        {
            "instance_id": f"engine-{index}",
            "url": engine.facts["url"],
            "predictor": predictor.facts["address"],
        }
        for index, (engine, predictor) in enumerate(pairs)
    ]
    return await services.start(
        "scheduler",
        f"{_SERVICES}.scheduler",
        f"--instances={json.dumps(instances)}",
        *flags,
        start_timeout_s=_START_S,
    )


async def _stop(children: Iterable[Child]) -> None:
    await asyncio.gather(*(child.stop(1.0) for child in children))


KINDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Measure]]] = {
    each.__name__: each for each in (gateway, predict, placement, plugin, start)
}


async def main(kind: str) -> None:
    """Answer each line of stdin on the original stdout; all other output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="foretell-watch-") as folder:
        async with KINDS[kind](Path(folder)) as measure:
            print("{}", file=answers)
            while await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(await measure()), file=answers)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
