"""How much longer do online requests wait beside a batch, and what does the batch lose for it?

The scenario is that of llm-d's batch gateway (llm-d issue 491): two engines, bursts of short online
requests, and a batch that would fill the engines. Online requests are measured alone, beside the
batch sent as any client could, and beside the same batch given to the batch service. Engines are
emulated; scheduler, sidecars and batch service are what is deployed.
"""

import argparse
import asyncio
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from bench.batch.cluster import ENGINES, PROFILE, Cluster, start_cluster
from bench.batch.load import MODES, Batch, Direct, Idle, Online, Served
from bench.processes import running_services
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.stats import percentile

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    needs="an idle core",
    packages=("foretell", "numba", "numpy", "aiohttp", "sqlalchemy"),
)
_WARM_UP_S = 10.0
"""Online requests alone before a run is measured, and after the batch has begun once more."""


async def _run(
    mode: str, session: aiohttp.ClientSession, cluster: Cluster, options: argparse.Namespace
) -> dict[str, Any]:
    """Online requests for some time, with the batch as `mode` says."""
    speedup = options.speedup
    online = Online(session, cluster, Random(options.seed), speedup, options.rate)
    beside: Batch = Idle()
    if mode == "unprotected":
        beside = Direct(session, cluster, options.concurrency)
    elif mode == "protected":
        beside = Served(session, cluster, options.lines)
    sending = asyncio.create_task(online.run())
    try:
        await asyncio.sleep(_WARM_UP_S)
        async with beside:
            await asyncio.sleep(_WARM_UP_S)
            before = await beside.tokens()
            online.begin()
            await asyncio.sleep(options.seconds)
            tokens = await beside.tokens() - before
            online.end()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await online.finish()
    return {
        "requests": len(online.ttft_s),
        **{f"ttft_p{level}_ms": 1000 * percentile(online.ttft_s, level) for level in (50, 90, 99)},
        "tpot_p99_ms": 1000 * percentile(online.tpot_s, 99),
        "batch_tokens_per_s": tokens / (options.seconds * speedup),
    }


async def _run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    unlimited = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    with TemporaryDirectory(prefix="foretell-bench-") as name:
        async with (
            running_services(Path(name)) as services,
            aiohttp.ClientSession(timeout=unlimited[0], connector=unlimited[1]) as session,
        ):
            cluster = await start_cluster(services, options.speedup)
            for round_number in range(options.rounds):
                for mode in MODES:
                    figures = await _run(mode, session, cluster, options)
                    found.append({"round": round_number, "mode": mode, **figures})
                    print(found[-1], flush=True)
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="Length of one measurement.")
    parser.add_argument("--speedup", type=float, default=0.25, help="Speed of the engines' clocks.")
    parser.add_argument(
        "--rate", type=float, default=15.0, help="Online requests a second, of the profile's."
    )
    parser.add_argument("--concurrency", type=int, default=512, help="Of the unprotected batch.")
    parser.add_argument("--lines", type=int, default=20_000, help="Of the batch.")
    parser.add_argument("--seed", type=int, default=1)


def measure(options: argparse.Namespace) -> Numbers:
    names = ("rounds", "seconds", "speedup", "rate", "concurrency", "lines", "seed")
    asked = {name: getattr(options, name) for name in names}
    return {**asked, "runs": asyncio.run(_run_all(options))}


_COLUMNS = {
    "ttft_p50_ms": "P50 TTFT, ms",
    "ttft_p90_ms": "P90",
    "ttft_p99_ms": "P99",
    "tpot_p99_ms": "P99 TPOT, ms",
    "batch_tokens_per_s": "batch, output tokens/s",
}


def tables(page: Numbers) -> Blocks:
    """The mean of all rounds, with the least and the most."""
    rows = []
    for mode in MODES:
        runs = [run for run in page["runs"] if run["mode"] == mode]
        cells = []
        for name in _COLUMNS:
            values = [run[name] for run in runs]
            mean = sum(values) / len(values)
            cells.append(f"{mean:,.0f} ({min(values):,.0f} to {max(values):,.0f})")
        rows.append((mode, *cells))
    text = (
        f"{ENGINES} emulated engines of {PROFILE} at {page['speedup']:g} times its speed; times "
        f"and rates are the profile's. {page['rate']:g} online requests a second in bursts; "
        f"{page['rounds']} rounds of {page['seconds']:g} s each, seed {page['seed']}; mean, least "
        "and most of the rounds.\n"
    )
    table = markdown_table(("", *_COLUMNS.values()), rows)
    return {"tables": "\n".join((made_by(page), text, table))}
