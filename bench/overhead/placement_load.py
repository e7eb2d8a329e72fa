"""What does placing by predictions cost beyond relaying, and what happens up to overload?

Schedulers, sidecars and the tagger are processes as they are deployed. The engines are not: what
they publish is made up, one snapshot per step, and a fake engine answers.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from math import inf
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
from bench.overhead.load.page import draw, tables
from bench.report import Benchmark, Numbers
from bench.stats import percentile
from foretell.services.process import runtime
from foretell.tools.harness.cases import Size

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    needs="gcc, Linux",
    packages=("foretell", "numpy", "grpcio", "protobuf", "uvloop", "onnxruntime"),
)
ENGINES = 12
RATES = (50.0, 200.0, 400.0, 600.0)
MANY = 1000
CHUNKS = 3
"""Chunks of each answer, one per tick of the fake engine: requests are under way for two ticks."""
RELAYING = "relaying"
VARIANTS = (
    Variant(RELAYING, "`least_outstanding`", "least_outstanding", tagger=False),
    Variant("latency", "`predicted_latency`", "predicted_latency"),
    Variant("untagged", "`slo`, no tagger", "slo", tagger=False),
    Variant("slo", "`slo`", "slo"),
    Variant("called", "`slo`, no pictures", "slo", pictures=False, most_per_s=200.0),
    Variant("slo-48", "`slo`", "slo", Size(48, 0)),
    Variant("slo-48-50", "`slo`", "slo", Size(48, 50)),
    Variant("slo-4", "`slo`, 4 instances", "slo", instances=4, most_per_s=200.0),
    Variant("slo-x2", "`slo`, 2 schedulers", "slo", schedulers=2, most_per_s=200.0),
    Variant("slo-x4", "`slo`, 4 schedulers", "slo", schedulers=4, most_per_s=200.0),
    Variant("slo-1000", f"`slo`, {MANY:,} instances", "slo", instances=MANY, most_per_s=200.0),
)
_WARM_UP_PER_S, _WARM_UP_S = 50.0, 1.0
_IDLE_S = 2.0
_JUST_S = 0.02
_LOGGED_S = 0.6
"""Until the last lines are in the request logs: sidecars are waited for."""


def arguments(parser: argparse.ArgumentParser) -> None:
    keys = [variant.key for variant in VARIANTS]
    parser.add_argument("--rounds", type=int, default=2, help="Rounds over all variants.")
    parser.add_argument("--seconds", type=float, default=2.5, help="Seconds of each rate.")
    parser.add_argument("--engines", type=int, default=ENGINES, help="Busy engines.")
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="Requests per s.")
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, help="Variants.")


def measure(options: argparse.Namespace) -> Numbers:
    """Load all variants in turn, round after round."""
    wanted = [v for v in VARIANTS if v.key in (RELAYING, *options.only)]
    with (
        TemporaryDirectory(prefix="foretell-bench-") as folder,
        asyncio.Runner(loop_factory=runtime.loop_factory()) as runner,
    ):
        found = runner.run(_measure(Path(folder), wanted, options))
    numbers = {
        "setup": {
            "engines": options.engines,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "chunks": CHUNKS,
            "tick_ms": TICK_MS,
        },
        "variants": {v.key: _summary(v, found[v.key], found[RELAYING]) for v in wanted},
    }
    if options.write:
        draw(numbers, BENCH.result(".svg"))
    return numbers


def request_us(key: str, rate: float, seconds: float) -> float:
    """CPU microseconds of a scheduler for a request placed by one of the variants."""
    variant = next(v for v in VARIANTS if v.key == key)
    options = argparse.Namespace(engines=ENGINES, rounds=1, rates=[rate], seconds=seconds)
    with (
        TemporaryDirectory(prefix="foretell-bench-") as folder,
        asyncio.Runner(loop_factory=runtime.loop_factory()) as runner,
    ):
        found = runner.run(_measure(Path(folder), [variant], options))
    return 1000.0 * float(found[key][0][rate]["cpu_ms"]["scheduler"])


Round = dict[float, dict[str, Any]]
"""What one variant did in one round, by rate."""


async def _measure(
    folder: Path, variants: Sequence[Variant], options: argparse.Namespace
) -> dict[str, list[Round]]:
    found: dict[str, list[Round]] = {variant.key: [] for variant in variants}
    async with running_cluster(folder, options.engines) as cluster:
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
        ports = schedulers.ports
        prompts = f"{variant.key} {seed}"
        warm_up = _WARM_UP_PER_S, _WARM_UP_S
        await send(ports, *warm_up, seed=seed, prompts=prompts, chunks=CHUNKS)
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
) -> dict[str, Any]:
    schedulers.logged()
    degraded, began = await schedulers.degraded(), schedulers.cpu_s()
    prompts = f"{prompts} {rate:g}"
    answers = await send(schedulers.ports, rate, seconds, seed=seed, prompts=prompts, chunks=CHUNKS)
    ended = schedulers.cpu_s()
    await asyncio.sleep(_LOGGED_S)
    degraded = await schedulers.degraded() - degraded
    lines = schedulers.logged()
    count = max(1, len(lines))
    ages = [1e3 * line["snapshot_age_s"] for line in lines if line["snapshot_age_s"] is not None]
    return {
        "cpu_ms": {
            name: 1e3 * (ended[name] - began[name] - idle[name] * answers.took_s) / count
            for name in began
        },
        "idle_cores": idle,
        "answered_per_s": len(answers.first_ms) / answers.took_s,
        "failed": answers.failed,
        "first_p50_ms": percentile(answers.first_ms or [0.0], 50),
        "first_p99_ms": percentile(answers.first_ms or [0.0], 99),
        "blind_ratio": sum(line["predicted_e2e_s"] is None for line in lines) / count,
        **{
            f"{source}_ratio": sum(line["length_source"] == source for line in lines) / count
            for source in ("model", "small_model")
        },
        "crowded_ratio": _crowded_ratio(lines),
        "age_p50_ms": percentile(ages, 50) if ages else None,
        "age_p99_ms": percentile(ages, 99) if ages else None,
        "degraded": dict(degraded),
    }


def _crowded_ratio(lines: Iterable[dict[str, Any]]) -> float:
    """The share of requests placed where another one was within `_JUST_S` before, by any replica.

    Replicas that do not know of each other's requests choose the same instance more often.
    """
    latest: dict[str, float] = {}
    crowded = count = 0
    for placed_s, instance_id in sorted((x["placed_unix_s"], x["instance_id"]) for x in lines):
        crowded += placed_s - latest.get(instance_id, -inf) < _JUST_S
        count += 1
        latest[instance_id] = placed_s
    return crowded / max(1, count)


def _summary(variant: Variant, own: Sequence[Round], base: Sequence[Round]) -> dict[str, Any]:
    """Medians over the rounds, each less what relaying took at the same rate in the same round."""
    rates = {
        f"{rate:g}": _point([each[rate] for each in own], [each[rate] for each in base])
        for rate in own[0]
    }
    return {"title": variant.title, "size": str(variant.size), "rates": rates}


def _point(own: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def beyond(first: str, then: str = "") -> float:
        pairs = [
            [each[first][then] if then else each[first] for each in two]
            for two in zip(own, base, strict=True)
        ]
        return round(float(median(a - b for a, b in pairs)), 3)

    def middle(name: str) -> float | None:
        values = [each[name] for each in own if each[name] is not None]
        return round(median(values), 4) if values else None

    groups = ("scheduler", "sidecars", "tagger", "encoder")
    plain = (
        *("answered_per_s", "failed", "first_p50_ms", "first_p99_ms"),
        *("blind_ratio", "model_ratio", "small_model_ratio", "crowded_ratio"),
        *("age_p50_ms", "age_p99_ms"),
    )
    missing = sorted({name for each in own for name in each["degraded"]})
    return {
        **{name: middle(name) for name in plain},
        **{f"{g}_ms": round(median(e["cpu_ms"][g] for e in own), 3) for g in groups},
        **{f"{g}_beyond_ms": beyond("cpu_ms", g) for g in groups},
        **{f"{g}_idle_cores": round(median(e["idle_cores"][g] for e in own), 3) for g in groups},
        **{f"{name}_beyond": beyond(name) for name in plain[2:4]},
        "degraded": {n: median(e["degraded"].get(n, 0) for e in own) for n in missing},
    }
