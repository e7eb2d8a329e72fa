"""How much longer do online requests wait beside a batch, and what does the batch lose for it?

The scenario is that of llm-d's batch gateway (llm-d issue 491): two engines, bursts of short online
requests, and a batch that would fill the engines. Online requests are measured alone, beside the
batch sent as any client could, beside the same batch given to the batch service, and so twice more
with targets for latency told: usual ones, and 1.1 times what was seen alone. Engines are emulated,
and then real vLLM on the CPU whose steps last as long as a profile says; scheduler, sidecars and
batch service are what is deployed.
"""

import argparse
import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from bench.batch.cluster import (
    ENGINES,
    KINDS,
    Cluster,
    Kind,
    start_batches,
    start_cluster,
    start_vllm_cluster,
    url_of,
)
from bench.batch.load import MODES, Batch, Direct, Idle, Online, Served
from bench.processes import Services, running_services
from bench.report import ROOT, Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.stats import percentile

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="50 minutes",
    needs="`make setup-vllm`, the model of `make run-vllm`, two idle cores",
    packages=("foretell", "numpy", "aiohttp", "sqlalchemy"),
)
_WARM_UP_S = 10.0
"""Online requests alone before a run is measured, and after the batch has begun once more."""
_LINES, _AT_ONCE = 20_000, 512
"""Requests of the batch, and how many are sent at once where that is done directly."""
_SEED = 1
_AS_ALONE = 1.1
"""The closest targets, over the P99 alone of the first round."""


@dataclass(frozen=True, slots=True)
class _Targets:
    """What online requests ask for and the batch service keeps, in seconds of the profile."""

    ttft_s: float
    tpot_s: float

    def headers(self, speedup: float) -> dict[str, str]:
        told_s = {"ttft": self.ttft_s, "tpot": self.tpot_s}
        return {
            f"x-foretell-{name}-target-ms": f"{1000 * target_s / speedup:.0f}"
            for name, target_s in told_s.items()
        }


async def _run(
    mode: str,
    kind: Kind,
    session: aiohttp.ClientSession,
    cluster: Cluster,
    seconds: float,
    targets: _Targets | None,
) -> dict[str, Any]:
    """Online requests for some time, with the batch as `mode` says."""
    headers = targets.headers(kind.speedup) if targets else {}
    online = Online(session, cluster, Random(_SEED), kind.speedup, kind.rate_per_s, headers)
    beside: Batch = Served(session, cluster, _LINES)
    if mode == "alone":
        beside = Idle()
    elif mode == "unprotected":
        beside = Direct(session, cluster, _AT_ONCE)
    sending = asyncio.create_task(online.run())
    try:
        await asyncio.sleep(_WARM_UP_S)
        async with beside:
            await asyncio.sleep(_WARM_UP_S)
            before = await beside.tokens()
            online.begin()
            await asyncio.sleep(seconds)
            tokens = await beside.tokens() - before
            online.end()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await online.finish()
    return {
        "targets_ms": [1000 * targets.ttft_s, 1000 * targets.tpot_s] if targets else None,
        "ttft_ms": sorted(round(1000 * each, 1) for each in online.ttft_s),
        "tpot_ms": sorted(round(1000 * each, 2) for each in online.tpot_s),
        "batch_tokens_per_s": tokens / (seconds * kind.speedup),
    }


async def _run_kind(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rounds of all modes on engines of one kind."""
    found, kind = [], KINDS[name]
    unlimited = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    with TemporaryDirectory(prefix="foretell-bench-") as folder:
        async with (
            running_services(Path(folder)) as services,
            aiohttp.ClientSession(timeout=unlimited[0], connector=unlimited[1]) as session,
        ):
            if name == "vllm":
                cluster = await start_vllm_cluster(
                    services, kind.speedup, options.python, options.model
                )
            else:
                cluster = await start_cluster(services, kind.speedup)
            usual, close = _Targets(kind.ttft_s, kind.tpot_s), None
            targeted = {usual: await _start_targeted(services, cluster, usual, kind.speedup)}
            for round_number in range(options.rounds):
                for mode in MODES:
                    targets = {"protected, targets": usual, "protected, as alone": close}.get(mode)
                    used = targeted[targets] if targets else cluster
                    run = await _run(mode, kind, session, used, options.seconds, targets)
                    found.append({"kind": name, "round": round_number, "mode": mode, **run})
                    print({**found[-1], **_figures([run])}, flush=True)
                    if close is None:
                        close = _Targets(
                            *(_AS_ALONE * percentile(run[what], 99) / 1000 for what in _LATENCIES)
                        )
                        targeted[close] = await _start_targeted(
                            services, cluster, close, kind.speedup
                        )
    return found


async def _start_targeted(
    services: Services, cluster: Cluster, targets: _Targets, speedup: float
) -> Cluster:
    """The cluster with another batch service, which keeps the target for TTFT."""
    flag = f"--ttft-target-ms={1000 * targets.ttft_s / speedup:g}"
    name = f"targeted-{1000 * targets.ttft_s:.0f}"
    started = await start_batches(services, cluster.url, name, flag)
    return replace(cluster, batches_url=url_of(started))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=100.0, help="Length of one measurement.")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-vllm/bin/python")
    parser.add_argument("--model", type=Path, default=ROOT / ".models/tiny-llama")


def measure(options: argparse.Namespace) -> Numbers:
    """Both kinds of engines, one after the other."""
    runs = [run for kind in options.kinds for run in asyncio.run(_run_kind(kind, options))]
    return {"rounds": options.rounds, "seconds": options.seconds, "runs": runs}


_LATENCIES = ("ttft_ms", "tpot_ms")
_COLUMNS = {
    "ttft_p50_ms": "P50 TTFT, ms",
    "ttft_p90_ms": "P90",
    "ttft_p99_ms": "P99",
    "tpot_p99_ms": "P99 TPOT, ms",
    "batch_tokens_per_s": "batch, output tokens/s",
}


def _figures(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The percentiles of all requests of some runs, and their mean throughput."""
    ttft_ms, tpot_ms = ([each for run in runs for each in run[what]] for what in _LATENCIES)
    return {
        **{f"ttft_p{level}_ms": percentile(ttft_ms, level) for level in (50, 90, 99)},
        "tpot_p99_ms": percentile(tpot_ms, 99),
        "batch_tokens_per_s": fmean(run["batch_tokens_per_s"] for run in runs),
    }


def tables(page: Numbers) -> Blocks:
    """For each kind of engine what all rounds together had, with the least and the most of one."""
    lines = [made_by(page)]
    for name in dict.fromkeys(run["kind"] for run in page["runs"]):
        kind = KINDS[name]
        lines.append(
            f"{ENGINES} {kind.what} at {kind.speedup:g} times the pace of {kind.profile}; times "
            f"and rates are the profile's. {kind.rate_per_s:g} online requests a second in "
            f"bursts; {page['rounds']} rounds of {page['seconds']:g} s each on the clock; of all "
            f"requests, with the least and the most of a round. Targets: TTFT "
            f"{1000 * kind.ttft_s:g} ms, TPOT {1000 * kind.tpot_s:g} ms; as alone: "
            f"{_AS_ALONE:g} times the P99 alone of the first round.\n"
        )
        lines.append(_table([run for run in page["runs"] if run["kind"] == name]))
    return {"tables": "\n".join(lines)}


def _table(runs: list[dict[str, Any]]) -> str:
    rows = []
    for mode in dict.fromkeys(run["mode"] for run in runs):
        own = [run for run in runs if run["mode"] == mode]
        whole, rounds = _figures(own), [_figures([run]) for run in own]
        cells = []
        for name in _COLUMNS:
            values = [each[name] for each in rounds]
            cells.append(f"{whole[name]:,.0f} ({min(values):,.0f} to {max(values):,.0f})")
        rows.append((mode, *cells))
    return markdown_table(("", *_COLUMNS.values()), rows)
