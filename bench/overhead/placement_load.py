"""What does placing by predictions cost beyond relaying?

Schedulers, predictors and the tagger are processes as deployed, in front of emulated engines at a
GPU's pace. Chats with short answers come at random times. All processes share the cores.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import psutil  # type: ignore[import-untyped]

from bench.processes import cpu_s, start_emulated, start_predictor
from bench.report import Benchmark, Blocks, Numbers, made_by
from foretell.services.process import runtime
from foretell.tools.harness.kernel import PROFILE
from foretell.tools.harness.schedulers import Engines, Schedulers, running_schedulers
from foretell.tools.harness.services import Services, running_services
from foretell.tools.intervals import percentile
from foretell.tools.markdown import markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="4 minutes",
    needs="Linux",
    packages=("foretell", "numpy", "grpcio", "protobuf", "uvloop", "onnxruntime"),
)
ENGINES = 12
MODEL, MOST_TOKENS, RATE_PER_S = "emulated", 32, 100.0
POLICIES = ("least_outstanding", "predicted_latency", "slo")
RELAYING = POLICIES[0]
"""This policy needs no predictor, and runs without a tagger."""
GROUPS = ("scheduler", "others")
"""The measured processes; others are the predictors, and the tagger without its length model, which
runs at idle priority."""
_START_S, _DEADLINE_S, _WARM_UP_S = 240.0, 30.0, 2.0
_LOGGED_S = 0.6
"""Time until the last lines, which wait for predictors, are in the request logs."""
_SYLLABLES = ["".join(pair) for pair in product("bcdfghlmnprstw", "aeiou")]
_MEDIAN_WORDS, _MOST_WORDS, _SIGMA = 40.0, 300, 1.0
Point = dict[str, float]
"""The figures of one policy in one round."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What keeps running while policies take turns."""

    folder: Path
    engines: Engines
    tagger: str
    others: list[psutil.Process]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="Rounds over all policies.")
    parser.add_argument("--seconds", type=float, default=5.0, help="Seconds of load.")


def measure(options: argparse.Namespace) -> Numbers:
    """Load all policies in turn, round after round."""
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    with (
        TemporaryDirectory(prefix="foretell-bench-") as folder,
        asyncio.Runner(loop_factory=runtime.loop_factory()) as runner,
    ):
        found = runner.run(_measure(Path(folder), options))
    return {
        "setup": {"rounds": options.rounds, "seconds": options.seconds},
        "policies": {policy: _summary(found[policy], found[RELAYING]) for policy in POLICIES},
    }


async def _measure(folder: Path, options: argparse.Namespace) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {policy: [] for policy in POLICIES}
    async with running_services(folder) as services:
        cluster = await _started(services)
        for number, policy in product(range(options.rounds), POLICIES):
            found[policy].append(await _round(cluster, policy, options.seconds, number))
    return found


async def _started(services: Services) -> Cluster:
    """Engines with their predictors, and the tagger."""
    waiting: dict[str, Any] = {"start_timeout_s": _START_S}
    numbers = range(ENGINES)
    engines, predictors = [
        await asyncio.gather(*(start(services, i, PROFILE, *more, **waiting) for i in numbers))
        for start, more in ((start_emulated, (f"--model-name={MODEL}",)), (start_predictor, ()))
    ]
    listen = f"--listen=unix:{services.folder}/tagger.sock"
    tagger = await services.start("tagger", "foretell.services.tagger", listen, **waiting)
    urls = tuple(str(each.facts["url"]) for each in engines)
    addresses = tuple(str(each.facts["address"]) for each in predictors)
    others = [each.process for each in (*predictors, tagger)]
    return Cluster(
        services.folder, Engines(MODEL, urls, addresses), tagger.facts["address"], others
    )


async def _round(cluster: Cluster, policy: str, seconds: float, number: int) -> Point:
    name, engines, tagger = f"{policy}-{number}", cluster.engines, cluster.tagger
    if policy == RELAYING:
        engines, tagger = Engines(MODEL, engines.urls), ""
    async with running_schedulers(
        cluster.folder / name, engines, policy, 1, f"--tagger={tagger}"
    ) as schedulers:
        await _send(schedulers, _WARM_UP_S, name)
        logged, before = len(_lines(schedulers)), _cpu_s(cluster, schedulers)
        answered = await _send(schedulers, seconds, f"{name} again")
        await asyncio.sleep(_LOGGED_S)
        after, lines = _cpu_s(cluster, schedulers), _lines(schedulers)[logged:]
    placed_ms = [1e3 * line["placement_s"] for line in lines]
    found = {
        **{f"{g}_ms": 1e3 * (after[g] - before[g]) / len(answered) for g in GROUPS},
        "failed": len(answered) - sum(answered),
        "placed_p50_ms": percentile(placed_ms, 50),
        "placed_p99_ms": percentile(placed_ms, 99),
        "blind_ratio": fmean(line["predicted_e2e_s"] is None for line in lines),
    }
    print(name, found, file=sys.stderr)
    return found


async def _send(schedulers: Schedulers, seconds: float, prompts: str) -> list[bool]:
    """Send for some seconds; returns for each request whether it was answered.

    `prompts` is the seed of texts and times.
    """
    draws, due_s, timeout = Random(prompts), time.monotonic(), aiohttp.ClientTimeout(_DEADLINE_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        tasks = []
        for _ in range(round(RATE_PER_S * seconds)):
            due_s += draws.expovariate(RATE_PER_S)
            body = _body(draws)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            tasks.append(asyncio.create_task(_ask(session, schedulers.urls[0], body)))
        return await asyncio.gather(*tasks)


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> bool:
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            await answer.read()
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _body(draws: Random) -> dict[str, Any]:
    """A chat whose prompt has a log-normal number of words."""
    words = min(_MOST_WORDS, max(3, round(draws.lognormvariate(0.0, _SIGMA) * _MEDIAN_WORDS)))
    prompt = " ".join("".join(draws.choices(_SYLLABLES, k=2)) for _ in range(words))
    message = {"role": "user", "content": prompt}
    return {"model": MODEL, "messages": [message], "max_tokens": MOST_TOKENS, "temperature": 0.7}


def _lines(schedulers: Schedulers) -> list[dict[str, Any]]:
    """The request log so far."""
    return [json.loads(line) for line in schedulers.logs[0].read_text().splitlines()]


def _cpu_s(cluster: Cluster, schedulers: Schedulers) -> dict[str, float]:
    """CPU seconds of each of `GROUPS` so far."""
    own = schedulers.started[0].process
    groups = ([own, *own.children(recursive=True)], cluster.others)
    return dict(zip(GROUPS, (sum(map(cpu_s, each)) for each in groups), strict=True))


def _summary(own: Sequence[Point], base: Sequence[Point]) -> Point:
    """Medians over the rounds, also of the differences to relaying in the same round."""
    point = {name: round(median(each[name] for each in own), 4) for name in own[0]}
    for name in (f"{group}_ms" for group in GROUPS):
        beyond = [a[name] - b[name] for a, b in zip(own, base, strict=True)]
        point[f"{name}_beyond"] = round(median(beyond), 3)
    return point


def tables(numbers: Numbers) -> Blocks:
    """A row for each policy."""
    setup = numbers["setup"]
    text = (
        f"*As deployed* but for the engines: {ENGINES} emulated at the pace of {PROFILE}; "
        f"{RATE_PER_S:g} requests/s, Poisson, answers of up to {MOST_TOKENS} tokens, not streamed; "
        f"medians over {setup['rounds']} rounds of {setup['seconds']:g} s, a seed each. CPU in ms "
        f"a request; *beyond*: less that of `{RELAYING}`, which asks no predictor and no tagger. "
        "*Others*: predictors and tagger. *Placing*: until an engine is chosen.\n"
    )
    rows = [
        (
            f"`{policy}`",
            *(f"{point[f'{group}_ms']:.2f}" for group in GROUPS),
            *(f"{point[f'{group}_ms_beyond']:.2f}" for group in GROUPS),
            f"{point['placed_p50_ms']:.1f} / {point['placed_p99_ms']:.1f}",
            f"{point['failed']:.0f}",
            f"{point['blind_ratio']:.1%}",
        )
        for policy, point in numbers["policies"].items()
    ]
    header = (
        *("placed by", "scheduler, ms", "others, ms", "scheduler beyond", "others beyond"),
        *("placing p50 / p99, ms", "failed", "without prediction"),
    )
    return {"tables": "\n".join([made_by(numbers), text, markdown_table(header, rows)])}
