"""How many batches end by the time that they were promised when they were created?

Batches of mixed sizes come one after the other, beside online requests in bursts. Engines are
emulated; scheduler, sidecars and batch service are what is deployed.
"""

import argparse
import asyncio
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from bench.batch.cluster import ENGINES, PROFILE, Cluster, start_cluster
from bench.batch.load import Online, body_of, create, known
from bench.processes import running_services
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.stats import percentile

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    needs="an idle core",
    packages=("foretell", "numpy", "aiohttp", "sqlalchemy"),
)
_SMALLEST, _LARGEST = 20, 150
_PROMPT = 256
_MEDIAN_OUTPUT, _SPREAD, _MOST_OUTPUT = 80, 0.7, 600
"""Tokens of the answers: log-normal."""
_LEARNING = 12
"""Batches at first, from which the service learns how long they take."""


def _bodies(model: str, name: str, draws: Random) -> list[dict[str, Any]]:
    count = round(_SMALLEST * (_LARGEST / _SMALLEST) ** draws.random())
    outputs = (round(_MEDIAN_OUTPUT * draws.lognormvariate(0.0, _SPREAD)) for _ in range(count))
    return [
        body_of(model, f"{name}-{number}", _PROMPT, min(_MOST_OUTPUT, max(1, output)))
        for number, output in enumerate(outputs)
    ]


async def _one(
    session: aiohttp.ClientSession, cluster: Cluster, name: str, draws: Random
) -> dict[str, Any]:
    """A batch from its creation to its end."""
    bodies = _bodies(cluster.model, name, draws)
    created_s = time.time()
    batch = await create(session, cluster, bodies)
    promise = batch["foretell"]
    while batch["status"] in ("validating", "in_progress", "finalizing"):
        await asyncio.sleep(0.05)
        batch = await known(session, cluster, batch["id"])
    assert batch["status"] == "completed", batch
    promised_s = promise["done_by"] - created_s if promise else None
    return {"requests": len(bodies), "took_s": time.time() - created_s, "promised_s": promised_s}


async def _run(options: argparse.Namespace) -> list[dict[str, Any]]:
    draws = Random(options.seed)
    found = []
    unlimited = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    with TemporaryDirectory(prefix="foretell-bench-") as folder:
        async with (
            running_services(Path(folder)) as services,
            aiohttp.ClientSession(timeout=unlimited[0], connector=unlimited[1]) as session,
        ):
            cluster = await start_cluster(services, options.speedup)
            online = Online(session, cluster, Random(draws.random()), options.speedup, options.rate)
            sending = asyncio.create_task(online.run())
            try:
                for number in range(_LEARNING + options.batches):
                    one = await _one(session, cluster, f"batch-{number}", draws)
                    print(one, flush=True)
                    if number >= _LEARNING:
                        found.append(one)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            await online.finish()
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--speedup", type=float, default=0.25, help="Speed of the engines' clocks.")
    parser.add_argument("--rate", type=float, default=15.0, help="Online requests a second.")
    parser.add_argument("--seed", type=int, default=1)


def measure(options: argparse.Namespace) -> Numbers:
    asked = {name: getattr(options, name) for name in ("speedup", "rate", "seed")}
    return {**asked, "batches": asyncio.run(_run(options))}


def tables(page: Numbers) -> Blocks:
    """How many promises were kept, and how far off they were."""
    batches = page["batches"]
    told = [each for each in batches if each["promised_s"] is not None]
    kept = sum(each["took_s"] <= each["promised_s"] for each in told)
    ratios = [each["took_s"] / each["promised_s"] for each in told]
    text = (
        f"{len(batches)} batches of {_SMALLEST} to {_LARGEST} requests, log-normal lengths, one "
        f"after the other, on {ENGINES} emulated engines of {PROFILE} at {page['speedup']:g} times "
        f"its speed, beside {page['rate']:g} online requests a second of the profile's in bursts; "
        f"seed {page['seed']}. {_LEARNING} came before, of which the service learnt.\n"
    )
    rows = [
        ("promised at creation", f"{len(told)} of {len(batches)}"),
        ("ended by then, of 90% promised", f"{kept / max(1, len(told)):.0%}"),
        *(
            (f"time taken / time promised, P{level}", f"{percentile(ratios, level):.2f}")
            for level in (10, 50, 90)
            if ratios
        ),
    ]
    return {"tables": "\n".join((made_by(page), text, markdown_table(("", ""), rows)))}
