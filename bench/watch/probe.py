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
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import Any

_SERVICES = "foretell.services"
try:
    import_module(_SERVICES)
except ImportError:  # a tree from before they were parts of the package
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
_RATE_PER_S, _SECONDS = 100.0, 3.0
_BLOCKS, _BLOCK = 9, 40
_TELLING_S = 0.02
"""For a thread of the plugin that tells what the last steps were."""


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of all threads of a process, to the nanosecond."""
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it has just ended
            total_ns += int((thread / "schedstat").read_text().split()[0])
    return 1e-9 * total_ns


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[Measure]:
    """A scheduler that relays: per request, and per chunk beyond the request."""
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
    """The compiled part of one prediction."""
    from foretell.tools.harness.cases import Size  # noqa: PLC0415
    from foretell.tools.harness.kernel import time_kernel  # noqa: PLC0415

    async def measure() -> Figures:
        return {
            f"a prediction, {size}, CPU µs": 1e6
            * median(time_kernel(size, _PREDICTIONS, lambda: None))
            for size in (Size(8, 0), Size(48, 50), Size(256, 256))
        }

    yield measure


@asynccontextmanager
async def placement(folder: Path) -> AsyncIterator[Measure]:
    """A scheduler that places by predictions and relays, and what following predictors takes."""
    from bench.overhead.load import cluster as load  # noqa: PLC0415
    from bench.overhead.load.client import send  # noqa: PLC0415

    variant = load.Variant("watch", "", "slo", tagger=False)
    async with (
        load.running_cluster(folder, _ENGINES) as cluster,
        load.running_schedulers(cluster, variant) as schedulers,
    ):
        numbers = count()

        def scheduler_s() -> float:
            return float(schedulers.cpu_s()["scheduler"])

        async def measure() -> Figures:
            number = next(numbers)
            times = [(time.monotonic(), scheduler_s())]
            await asyncio.sleep(1.0)
            times.append((time.monotonic(), scheduler_s()))
            prompts = f"watch {number}"
            answers = await send(
                schedulers.ports, _RATE_PER_S, _SECONDS, seed=number, prompts=prompts, chunks=3
            )
            times.append((time.monotonic(), scheduler_s()))
            (idle_s, idle_cpu_s), (busy_s, busy_cpu_s) = (
                (then - now, later_s - now_s) for (now, now_s), (then, later_s) in pairwise(times)
            )
            idle = idle_cpu_s / idle_s
            return {
                f"a request placed among {_ENGINES} and relayed, CPU µs": 1e6
                * (busy_cpu_s - idle * busy_s)
                / len(answers.first_ms),
                f"following {_ENGINES} predictors for a second, CPU µs": 1e6 * idle,
            }

        yield measure


@asynccontextmanager
async def plugin(folder: Path) -> AsyncIterator[Measure]:
    """What the plugin adds to a step of vLLM's scheduler, in whatever thread."""
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
    """Each service, started after the other, until it serves."""
    from bench.processes import running_services, start_emulated, start_predictor  # noqa: PLC0415
    from foretell.tools.harness.kernel import PROFILE  # noqa: PLC0415

    numbers = count()

    async def measure() -> Figures:
        own = folder / str(next(numbers))  # a service may remember what it learnt in a folder
        own.mkdir()
        patience = {"start_timeout_s": _START_S}
        async with running_services(own) as services:
            began_s, started = time.monotonic(), {}
            engine = await start_emulated(services, 0, PROFILE, **patience)
            started["emulated engine"] = engine
            predictor = await start_predictor(services, 0, PROFILE, **patience)
            started["predictor"] = predictor
            tagger = await services.start(
                "tagger", f"{_SERVICES}.tagger", f"--listen=unix:{own}/tagger.sock", **patience
            )
            started["tagger"] = tagger
            facts = {"instance_id": "engine-0", "url": engine.facts["url"]}
            instance = {**facts, "predictor": predictor.facts["address"]}
            started["scheduler"] = await services.start(
                "scheduler",
                f"{_SERVICES}.scheduler",
                f"--instances={json.dumps([instance])}",
                f"--tagger={tagger.facts['address']}",
                **patience,
            )
            took_s = time.monotonic() - began_s
            found = {"start of four services, wall s": took_s}
            for name, service in started.items():
                found[f"start of the {name}, CPU s"] = cpu_s(service.process.pid)
                memory = service.process.memory_info().rss / 2**20
                found[f"memory of the {name}, MiB"] = memory
            return found

    yield measure


async def _stop(children: Iterable[Child]) -> None:
    await asyncio.gather(*(child.stop(1.0) for child in children))


KINDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Measure]]] = {
    each.__name__: each for each in (gateway, predict, placement, plugin, start)
}


async def main(kind: str) -> None:
    """Answer on what was stdout, until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="foretell-watch-") as folder:
        async with KINDS[kind](Path(folder)) as measure:
            print("{}", file=answers)
            while await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(await measure()), file=answers)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
