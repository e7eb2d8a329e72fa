"""What latency does the scheduler add to a request, without prediction and with it?

The same requests go to an emulated engine directly, through a scheduler that asks nobody
(round_robin), and through schedulers that ask the tagger and 1, 2 or 4 predictors
(predicted_latency). The engine runs a million times faster than its profile, so what is left is
the cost of the way to it. All processes are up for the whole run and the routes take short turns,
so that whatever else the machine does hits all alike.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import httpx
from rich.progress import Progress

from bench.overhead.loads import LOADS, Cell, Cells, Load, Measured, Timing
from bench.overhead.routes import Route, Testbed, read_metrics, start_testbed
from bench.overhead.scheduler_report import chart, results_of, tables
from bench.processes import OthersClock, Service, running_services
from bench.report import Benchmark, Numbers
from bench.runs import progress

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes",
    packages=(
        "foretell",
        "fastapi",
        "uvicorn",
        "uvloop",
        "httptools",
        "aiohttp",
        "grpcio",
        "protobuf",
    ),
)
PROMPT = "How does a scheduler that foretells what each engine will do choose among them? " * 6
WARMUP_REQUESTS = 32  # per route and load, before anything is measured
# What the scheduler does after its answer (Complete, Observe) still belongs to the block.
SETTLE_S = 0.05
_TIMEOUT = aiohttp.ClientTimeout(total=30.0)


class UnexpectedAnswerError(Exception):
    """The server did not answer as a benchmark needs it to."""


class Bench:
    """Sends blocks of requests over the routes of one testbed."""

    def __init__(self, testbed: Testbed, metrics_client: httpx.AsyncClient) -> None:
        self._testbed = testbed
        self._metrics_client = metrics_client

    async def warm_up(self, load: Load, route: Route) -> None:
        await self._send(load, route, WARMUP_REQUESTS)

    async def block(self, load: Load, route: Route, cell: Cell) -> None:
        """Send one round's requests over `route` and add what they showed to `cell`."""
        await asyncio.sleep(SETTLE_S)
        metrics = await read_metrics(self._metrics_client, route)
        cpu = self._cpu_s(route)
        started = time.perf_counter()
        cell.rounds.append(await self._send(load, route, load.per_round))
        cell.wall_s += time.perf_counter() - started
        await asyncio.sleep(SETTLE_S)
        _add_growth(cell.cpu_s, cpu, self._cpu_s(route))
        _add_growth(cell.metrics, metrics, await read_metrics(self._metrics_client, route))

    async def _send(self, load: Load, route: Route, count: int) -> list[Timing]:
        request = {
            "model": self._testbed.model,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": load.max_tokens,
            "ignore_eos": True,
            "stream": load.stream,
        }
        body = json.dumps(request).encode()
        left = iter(range(count))
        timings: list[Timing] = []

        async def worker() -> None:
            async with aiohttp.ClientSession(route.url, timeout=_TIMEOUT) as session:
                await session.get("/health")  # connecting is not part of any timing
                for _ in left:
                    timings.append(await _time(session, load, body))

        async with asyncio.TaskGroup() as workers:
            for _ in range(load.concurrency):
                workers.create_task(worker())
        return timings

    def _cpu_s(self, route: Route) -> dict[str, float]:
        groups: dict[str, tuple[Service | None, ...]] = {
            "scheduler": (route.scheduler,),
            "predictors": route.predictors,
            "tagger": (route.tagger,),
            "engines": self._testbed.engines,
        }
        return {
            role: sum(service.cpu_s() for service in group if service)
            for role, group in groups.items()
        }


def _add_growth(total: Counter[str], before: dict[str, float], after: dict[str, float]) -> None:
    for name, value in after.items():
        total[name] += value - before.get(name, 0.0)  # type: ignore[assignment]


async def _time(session: aiohttp.ClientSession, load: Load, body: bytes) -> Timing:
    """Send one chat request; every token must come: a benchmark of half an answer is none."""
    headers = {"content-type": "application/json"}
    started = time.perf_counter()
    async with session.post("/v1/chat/completions", data=body, headers=headers) as response:
        answer = await response.content.readany()
        first = time.perf_counter()
        answer += await response.content.read()
    ended = time.perf_counter()
    if load.stream:
        # One event opens the answer, one ends it with [DONE].
        complete = answer.count(b"data: ") == load.max_tokens + 2
    else:
        complete = b'"completion_tokens":%d' % load.max_tokens in answer.replace(b" ", b"")
    if response.status != 200 or not complete:
        raise UnexpectedAnswerError(f"{response.status}: {answer[-500:]!r}")
    return Timing(first - started, ended - started)


async def time_routes(loads: tuple[Load, ...], progress: Progress) -> Measured:
    """Run every load over every route, in short turns whose order rotates."""
    with TemporaryDirectory(prefix="foretell-bench-") as folder:
        starting = progress.add_task("starting services", total=None)
        async with (
            running_services(Path(folder)) as services,
            httpx.AsyncClient(trust_env=False, timeout=10.0) as client,
        ):
            testbed = await start_testbed(services)
            progress.remove_task(starting)
            bench = Bench(testbed, client)
            cells: Cells = {}
            others: dict[str, float] = {}
            for load in loads:
                clock = OthersClock(services.cpu_s)
                routes = testbed.routes
                bar = progress.add_task(load.title, total=load.rounds * len(routes))
                for route in routes:
                    await bench.warm_up(load, route)
                for turn in range(load.rounds):
                    shift = turn % len(routes)
                    for route in routes[shift:] + routes[:shift]:
                        cell = cells.setdefault((load.key, route.key), Cell())
                        await bench.block(load, route, cell)
                        progress.advance(bar)
                others[load.key] = clock.cores()
            titles = {route.key: route.title for route in testbed.routes}
            return Measured(titles, cells, others)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="Factor of the number of rounds.")


def measure(options: argparse.Namespace) -> Numbers:
    """Time all routes, and draw a chart."""
    loads = tuple(load.scaled(options.scale) for load in LOADS)
    with progress() as bar:
        numbers = results_of(loads, asyncio.run(time_routes(loads, bar)))
    if options.write:
        chart(BENCH.result(".svg"), numbers)
    return numbers


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
