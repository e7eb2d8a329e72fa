"""What does placing by predictions cost beyond relaying, and what happens up to overload?

Schedulers, sidecars and the tagger are processes as they are deployed. The engines are not: what
they publish is made up, one snapshot per step, and a fake engine answers. All share the cores.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.overhead.load.client import send
from bench.overhead.load.cluster import (
    TICK_MS,
    Cluster,
    Schedulers,
    Variant,
    running_cluster,
    running_schedulers,
)
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.services.process import runtime
from foretell.tools.harness.cases import Size
from foretell.tools.intervals import percentile

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes",
    needs="gcc, Linux",
    packages=("foretell", "numpy", "grpcio", "protobuf", "uvloop", "onnxruntime"),
)
ENGINES = 12
RATES = (50.0, 200.0, 400.0)
MANY = 1000
CHUNKS = 3
"""Chunks of each answer, one per tick of the fake engine: requests are under way for two ticks."""
RELAYING = "relaying"
VARIANTS = (
    Variant(RELAYING, "`least_outstanding`", "least_outstanding", tagger=False),
    Variant("latency", "`predicted_latency`", "predicted_latency"),
    Variant("slo", "`slo`", "slo"),
    Variant("slo-48-50", "`slo`", "slo", Size(48, 50)),
    Variant("slo-x2", "`slo`, 2 schedulers", "slo", schedulers=2, most_per_s=200.0),
    Variant("slo-1000", f"`slo`, {MANY:,} instances", "slo", instances=MANY, most_per_s=200.0),
)
GROUPS = ("scheduler", "sidecars", "tagger")
"""Those that take time from others; the length model's process has idle priority."""
_WARM_UP_PER_S, _WARM_UP_S = 50.0, 1.0
_IDLE_S = 2.0
_LOGGED_S = 0.6
"""Until the last lines are in the request logs: sidecars are waited for."""
Point = dict[str, float]
Round = dict[float, Point]
"""What one variant did in one round, by rate."""


def arguments(parser: argparse.ArgumentParser) -> None:
    keys = [variant.key for variant in VARIANTS]
    parser.add_argument("--rounds", type=int, default=2, help="Rounds over all variants.")
    parser.add_argument("--seconds", type=float, default=4.0, help="Seconds of each rate.")
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="Requests per s.")
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, help="Variants.")


def measure(options: argparse.Namespace) -> Numbers:
    """Load all variants in turn, round after round."""
    if options.quick:
        options.rounds, options.seconds, options.rates = 1, 1.0, [50.0]
        options.only = ["slo"]
    wanted = [v for v in VARIANTS if v.key in (RELAYING, *options.only)]
    with (
        TemporaryDirectory(prefix="foretell-bench-") as folder,
        asyncio.Runner(loop_factory=runtime.loop_factory()) as runner,
    ):
        found = runner.run(_measure(Path(folder), wanted, options))
    setup = {"engines": ENGINES, "rounds": options.rounds, "seconds": options.seconds}
    return {
        "setup": {**setup, "chunks": CHUNKS, "tick_ms": TICK_MS},
        "variants": {v.key: _summary(v, found[v.key], found[RELAYING]) for v in wanted},
    }


async def _measure(
    folder: Path, variants: Sequence[Variant], options: argparse.Namespace
) -> dict[str, list[Round]]:
    found: dict[str, list[Round]] = {variant.key: [] for variant in variants}
    async with running_cluster(folder, ENGINES) as cluster:
        for number in range(options.rounds):
            for variant in variants:
                rates = [r for r in options.rates if r <= (variant.most_per_s or r)]
                found[variant.key].append(
                    await _round(cluster, variant, rates, options.seconds, number)
                )
    return found


async def _round(
    cluster: Cluster, variant: Variant, rates: Iterable[float], seconds: float, seed: int
) -> Round:
    async with running_schedulers(cluster, variant) as schedulers:
        prompts = f"{variant.key} {seed}"
        warm_up = _WARM_UP_PER_S, _WARM_UP_S
        await send(schedulers.ports, *warm_up, seed=seed, prompts=prompts, chunks=CHUNKS)
        began = schedulers.cpu_s()
        await asyncio.sleep(_IDLE_S)
        idle = {name: (s - began[name]) / _IDLE_S for name, s in schedulers.cpu_s().items()}
        found = {}
        for rate in rates:
            found[rate] = await _load(schedulers, rate, seconds, seed, prompts, idle)
            print(f"{variant.key} {variant.size} {rate:g}/s {found[rate]}", file=sys.stderr)
    return found


async def _load(
    schedulers: Schedulers,
    rate: float,
    seconds: float,
    seed: int,
    prompts: str,
    idle: dict[str, float],
) -> Point:
    schedulers.logged()
    began, prompts = schedulers.cpu_s(), f"{prompts} {rate:g}"
    answers = await send(schedulers.ports, rate, seconds, seed=seed, prompts=prompts, chunks=CHUNKS)
    ended = schedulers.cpu_s()
    await asyncio.sleep(_LOGGED_S)
    lines = schedulers.logged()
    count = max(1, len(lines))
    ages = [1e3 * line["snapshot_age_s"] for line in lines if line["snapshot_age_s"] is not None]
    return {
        **{
            f"{name}_ms": 1e3 * (ended[name] - began[name] - idle[name] * answers.took_s) / count
            for name in GROUPS
        },
        **{f"{name}_idle_cores": idle[name] for name in GROUPS},
        "answered_per_s": len(answers.first_ms) / answers.took_s,
        "failed": answers.failed,
        "first_p50_ms": percentile(answers.first_ms or [0.0], 50),
        "first_p99_ms": percentile(answers.first_ms or [0.0], 99),
        "blind_ratio": sum(line["predicted_e2e_s"] is None for line in lines) / count,
        "age_p50_ms": percentile(ages or [0.0], 50),
    }


def _summary(variant: Variant, own: Sequence[Round], base: Sequence[Round]) -> dict[str, Any]:
    """Medians over the rounds, and of what is beyond relaying at the same rate in the round."""
    rates = {}
    for rate, first in own[0].items():
        point = {name: round(median(each[rate][name] for each in own), 4) for name in first}
        for name in (*(f"{group}_ms" for group in GROUPS), "first_p50_ms", "first_p99_ms"):
            pairs = zip(own, base, strict=True)
            beyond = median(a[rate][name] - b[rate][name] for a, b in pairs)
            point[f"{name}_beyond"] = round(beyond, 3)
        rates[f"{rate:g}"] = point
    return {"title": variant.title, "size": str(variant.size), "rates": rates}


def tables(numbers: Numbers) -> Blocks:
    """A row for each variant and rate."""
    setup = numbers["setup"]
    text = (
        f"*As deployed* but for the engines: {setup['engines']} that publish made-up states and "
        f"answer {setup['chunks']} chunks, one every {setup['tick_ms']} ms; Poisson arrivals; "
        f"medians over {setup['rounds']} round(s) of {setup['seconds']:g} s, a seed each. CPU in "
        "ms a placement, less what the same processes take without requests and less relaying "
        "(`least_outstanding` without tagger and predictors) at the same rate.\n"
    )
    rows = []
    for key, variant in numbers["variants"].items():
        for rate, point in variant["rates"].items():
            beyond = "ms" if key == RELAYING else "ms_beyond"
            rows.append(
                (
                    f"{variant['title']}, {variant['size']}",
                    rate,
                    *(f"{point[f'{group}_{beyond}']:.2f}" for group in GROUPS),
                    f"{point[f'first_p50_{beyond}']:.1f} / {point[f'first_p99_{beyond}']:.1f}",
                    f"{point['failed']:.0f}",
                    f"{point['blind_ratio']:.1%}",
                    f"{point['age_p50_ms']:.0f}",
                )
            )
    header = (
        *("placed by, running + waiting", "requests/s"),
        *(f"{group}, ms" for group in GROUPS),
        *("first byte p50 / p99, ms", "failed", "without prediction", "snapshot's age p50, ms"),
    )
    table = markdown_table(header, rows)
    return {"tables": "\n".join([made_by(numbers), text, table])}
