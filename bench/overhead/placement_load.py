"""What does placing by predictions cost beyond relaying?

Schedulers, predictors and the tagger are processes as they are deployed, before emulated engines
that work at a GPU's pace. Chats with short answers come at random instants. All share the cores.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import psutil  # type: ignore[import-untyped]

from bench.processes import Services, cpu_s, running_services, start_emulated, start_predictor
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.services.process import runtime
from foretell.tools.harness.kernel import PROFILE
from foretell.tools.harness.schedulers import Engines, Schedulers, running_schedulers
from foretell.tools.intervals import percentile

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes",
    needs="Linux",
    packages=("foretell", "numpy", "grpcio", "protobuf", "uvloop", "onnxruntime"),
)
ENGINES, MANY = 12, 1000
RATES = (50.0, 100.0, 200.0)
MODEL, TOKENS = "emulated", 32
RELAYING = "relaying"
GROUPS = ("scheduler", "predictors", "tagger")
"""Those that take time from others; the length model's process has idle priority."""
_START_S, _DEADLINE_S = 240.0, 30.0
_WARM_UP = 50.0, 2.0  # requests a second, and seconds
_LOGGED_S = 0.6
"""Until the last lines are in the request logs: predictors are waited for."""
_VOCABULARY = [
    "".join(word) for word in product("bcdfghlmnprstw", "aeiou", "dlmnrst", ("", "e", "ing", "ed"))
]
_MEDIAN_WORDS, _MOST_WORDS, _SIGMA = 40.0, 300, 1.0
Point = dict[str, float]
Round = dict[float, Point]
"""What one variant did in one round, by rate."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to place requests."""

    key: str
    title: str
    policy: str
    schedulers: int = 1
    instances: int = ENGINES
    """More than `ENGINES`: several instances share one engine."""


VARIANTS = (
    Variant(RELAYING, "`least_outstanding`", "least_outstanding"),
    Variant("latency", "`predicted_latency`", "predicted_latency"),
    Variant("slo", "`slo`", "slo"),
    Variant("slo-x2", "`slo`, 2 schedulers", "slo", schedulers=2),
    Variant("slo-1000", f"`slo`, {MANY:,} instances", "slo", instances=MANY),
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What stays while variants come and go."""

    folder: Path
    engines: Engines
    tagger: str
    predictors: list[psutil.Process]
    tagging: psutil.Process

    def before(self, variant: Variant) -> Engines:
        """The instances of a variant; relaying asks no predictor."""
        times = -(-variant.instances // ENGINES)
        urls, predictors = (
            (each * times)[: variant.instances]
            for each in (self.engines.urls, self.engines.predictors)
        )
        return replace(
            self.engines, urls=urls, predictors=() if variant.key == RELAYING else predictors
        )


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2, help="Rounds over all variants.")
    parser.add_argument("--seconds", type=float, default=4.0, help="Seconds of each rate.")


def measure(options: argparse.Namespace) -> Numbers:
    """Load all variants in turn, round after round."""
    variants = VARIANTS
    if options.quick:
        options.rounds, options.seconds, variants = 1, 1.0, VARIANTS[:3:2]
    with (
        TemporaryDirectory(prefix="foretell-bench-") as folder,
        asyncio.Runner(loop_factory=runtime.loop_factory()) as runner,
    ):
        found = runner.run(_measure(Path(folder), variants, options))
    setup = {"engines": ENGINES, "rounds": options.rounds, "seconds": options.seconds}
    return {
        "setup": {**setup, "tokens": TOKENS, "profile": PROFILE},
        "variants": {v.key: _summary(v, found[v.key], found[RELAYING]) for v in variants},
    }


async def _measure(
    folder: Path, variants: Sequence[Variant], options: argparse.Namespace
) -> dict[str, list[Round]]:
    found: dict[str, list[Round]] = {variant.key: [] for variant in variants}
    async with running_services(folder) as services:
        cluster = await _started(services)
        for number, variant in product(range(options.rounds), variants):
            name = f"{variant.key}-{number}"
            found[variant.key].append(await _round(cluster, variant, options.seconds, name))
    return found


async def _started(services: Services) -> Cluster:
    """Engines with their predictors, and the tagger."""
    waiting: dict[str, Any] = {"start_timeout_s": _START_S}
    flags = (PROFILE, "--log-level=warning")
    numbers = range(ENGINES)
    engines, predictors = [
        await asyncio.gather(*(start(services, i, *flags, *more, **waiting) for i in numbers))
        for start, more in ((start_emulated, (f"--model-name={MODEL}",)), (start_predictor, ()))
    ]
    tagger = await services.start(
        "tagger",
        "foretell.services.tagger",
        f"--listen=unix:{services.folder}/tagger.sock",
        **waiting,
    )
    urls = tuple(str(each.facts["url"]) for each in engines)
    addresses = tuple(str(each.facts["address"]) for each in predictors)
    return Cluster(
        services.folder,
        Engines(MODEL, urls, addresses),
        str(tagger.facts["address"]),
        [each.process for each in predictors],
        tagger.process,
    )


async def _round(cluster: Cluster, variant: Variant, seconds: float, name: str) -> Round:
    place = cluster.folder / name
    tagger = "" if variant.key == RELAYING else cluster.tagger
    async with running_schedulers(
        place, cluster.before(variant), variant.policy, variant.schedulers, f"--tagger={tagger}"
    ) as schedulers:
        await _send(schedulers, *_WARM_UP, name)
        found = {}
        for rate in RATES:
            logged, before = len(_lines(schedulers)), _cpu_s(cluster, schedulers)
            answered = await _send(schedulers, rate, seconds, f"{name} {rate:g}")
            await asyncio.sleep(_LOGGED_S)
            after, lines = _cpu_s(cluster, schedulers), _lines(schedulers)[logged:]
            used_s = {group: after[group] - before[group] for group in GROUPS}
            found[rate] = _point(used_s, answered, lines)
            print(f"{name} {rate:g}/s {found[rate]}", file=sys.stderr)
    return found


def _point(
    used_s: dict[str, float], answered: Sequence[bool], lines: Sequence[dict[str, Any]]
) -> Point:
    placed_ms = [1e3 * line["placement_s"] for line in lines] or [0.0]
    ages_ms = [1e3 * line["snapshot_age_s"] for line in lines if line["snapshot_age_s"] is not None]
    return {
        **{f"{group}_ms": 1e3 * seconds / len(answered) for group, seconds in used_s.items()},
        "failed": len(answered) - sum(answered),
        "placed_p50_ms": percentile(placed_ms, 50),
        "placed_p99_ms": percentile(placed_ms, 99),
        "blind_ratio": fmean(line["predicted_e2e_s"] is None for line in lines) if lines else 1.0,
        "age_p50_ms": percentile(ages_ms or [0.0], 50),
    }


async def _send(
    schedulers: Schedulers, rate_per_s: float, seconds: float, prompts: str
) -> list[bool]:
    """Send to the schedulers in turn, and say of each request whether it was answered.

    `prompts` is the seed of texts and instants: the tagger recalls those that it has read.
    """
    draws, due_s, timeout = Random(prompts), time.monotonic(), aiohttp.ClientTimeout(_DEADLINE_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        tasks = []
        for number in range(max(1, round(rate_per_s * seconds))):
            due_s += draws.expovariate(rate_per_s)
            body, url = _body(draws), schedulers.urls[number % len(schedulers.urls)]
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            tasks.append(asyncio.create_task(_ask(session, url, body)))
        return await asyncio.gather(*tasks)


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> bool:
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            await answer.read()
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _body(draws: Random) -> dict[str, Any]:
    """A chat with a prompt of log-normally many words."""
    words = min(_MOST_WORDS, max(3, round(draws.lognormvariate(0.0, _SIGMA) * _MEDIAN_WORDS)))
    prompt = " ".join(draws.choices(_VOCABULARY, k=words))
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": TOKENS,
        "temperature": 0.7,
    }


def _lines(schedulers: Schedulers) -> list[dict[str, Any]]:
    """What the request logs hold until now."""
    return [json.loads(line) for log in schedulers.logs for line in log.read_text().splitlines()]


def _cpu_s(cluster: Cluster, schedulers: Schedulers) -> dict[str, float]:
    """CPU seconds so far of the schedulers, the predictors, and the tagger without the process in
    which its length model runs when nobody else wants to."""
    scheduling = [
        process
        for each in schedulers.started
        for process in (each.process, *each.process.children(recursive=True))
    ]
    groups = (scheduling, cluster.predictors, [cluster.tagging])
    return dict(zip(GROUPS, (sum(map(cpu_s, each)) for each in groups), strict=True))


def _summary(variant: Variant, own: Sequence[Round], base: Sequence[Round]) -> dict[str, Any]:
    """Medians over the rounds, and of what is beyond relaying at the same rate in the round."""
    rates = {}
    for rate, first in own[0].items():
        point = {name: round(median(each[rate][name] for each in own), 4) for name in first}
        for name in GROUPS:
            pairs = zip(own, base, strict=True)
            beyond = median(a[rate][f"{name}_ms"] - b[rate][f"{name}_ms"] for a, b in pairs)
            point[f"{name}_ms_beyond"] = round(beyond, 3)
        rates[f"{rate:g}"] = point
    return {"title": variant.title, "rates": rates}


def tables(numbers: Numbers) -> Blocks:
    """A row for each variant and rate."""
    setup = numbers["setup"]
    text = (
        f"*As deployed* but for the engines: {setup['engines']} emulated at the pace of "
        f"{setup['profile']}, answers of up to {setup['tokens']} tokens, not streamed; Poisson "
        f"arrivals; medians over {setup['rounds']} round(s) of {setup['seconds']:g} s, a seed "
        "each. CPU in ms a placement, less relaying (`least_outstanding` without "
        "tagger and predictors) at the same rate. "
        "*Placing*: from the arrival of a request to the choice, by the request log.\n"
    )
    rows = []
    for key, variant in numbers["variants"].items():
        beyond = "ms" if key == RELAYING else "ms_beyond"
        for rate, point in variant["rates"].items():
            rows.append(
                (
                    variant["title"],
                    rate,
                    *(f"{point[f'{group}_{beyond}']:.2f}" for group in GROUPS),
                    f"{point['placed_p50_ms']:.1f} / {point['placed_p99_ms']:.1f}",
                    f"{point['failed']:.0f}",
                    f"{point['blind_ratio']:.1%}",
                    f"{point['age_p50_ms']:.0f}",
                )
            )
    header = (
        *("placed by", "requests/s"),
        *(f"{group}, ms" for group in GROUPS),
        *("placing p50 / p99, ms", "failed", "without prediction", "snapshot's age p50, ms"),
    )
    return {"tables": "\n".join([made_by(numbers), text, markdown_table(header, rows)])}
