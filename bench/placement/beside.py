"""What do online requests notice of offline work on a real vLLM engine at a GPU's pace?

Real vLLM engines on the CPU, whose steps last as long as a profile says, serve the same online
requests, drawn from conversations at Poisson times: alone, beside offline requests by vLLM's
policy `priority`, and beside the same with `CoScheduler`; and again with a burst, in which those of
ten seconds come within one. A fixed number of offline requests is always in the engine: short
questions on long texts, more texts than the KV cache holds. One engine works at a time.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from bench.paced import cluster
from bench.paced.engines import (
    CO_SCHEDULER,
    MODEL_NAME,
    EngineSpec,
    forget_prefixes,
    start_paced,
)
from bench.paced.load import Answered, send
from bench.paced.pace import PROFILE, step_time
from bench.paced.requests import Chain, draw
from bench.paced.settings import mean_lengths, requests_per_s
from bench.report import Benchmark, Blocks, Numbers, made_by
from foretell.tools.check import load as check
from foretell.tools.harness.services import running_services
from foretell.tools.intervals import percentile, plus_minus
from foretell.tools.live.stream import StreamClient
from foretell.tools.markdown import markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="30 minutes",
    needs="`make setup-vllm`, the model of `make run-vllm`, two idle cores",
    packages=("foretell", "numpy"),
)
SEATS, BLOCKS = 32, 72
UTILISATION = 0.4
"""Ratio of the rate of online requests to what the full engine could serve."""
TARGETS_S = (1.0, 0.08)
SCENARIOS = {"Poisson": 1.0, "burst": 10.0}
"""Factors on the rate, for one second in the middle."""
AT_ONCE = 64
"""Offline requests in the engine at any time."""
_TEXTS = 12, 1120, 260
"""The number of texts, their tokens, and four times the tokens of the longest answer."""
CONTENDERS = {
    "online alone": (0, False, False),
    "priority": (0, True, False),
    "CoScheduler, as if alone": (1, True, False),
    "CoScheduler, with targets": (1, True, True),
}
"""The engine, whether there is offline work, and whether the engine knows online targets."""
_DETAILS = "--enable-prompt-tokens-details"
ENGINES = (
    EngineSpec(SEATS, BLOCKS, 1.0, f"{_DETAILS} --scheduling-policy priority"),
    EngineSpec(SEATS, BLOCKS, 1.0, f"{_DETAILS} {CO_SCHEDULER}"),
)


def chains_of(plan: cluster.Plan, round_: int, burst: float, *, with_targets: bool) -> list[Chain]:
    """The online requests of a round, the same for each contender."""
    turns = [turn for conversation in plan.conversations for turn in conversation]
    rate = UTILISATION * requests_per_s(ENGINES[0], *mean_lengths(turns), step_time())
    targets = [TARGETS_S] if with_targets else []
    chains = draw(plan.conversations, plan.requests, rate, round_, targets_s=targets)
    return with_burst(chains, 0.5 * plan.requests / rate, burst)


def with_burst(chains: list[Chain], since_s: float, times: float) -> list[Chain]:
    """Move the chains that begin within `times` seconds after `since_s` into one second."""

    def moved(after_s: float) -> float:
        amidst = since_s <= after_s < since_s + times
        return since_s + (after_s - since_s) / times if amidst else after_s

    return [(replace(first, after_s=moved(first.after_s)), *rest) for first, *rest in chains]


async def run(plan: cluster.Plan) -> list[dict[str, Any]]:
    """Run all rounds of all contenders, which take turns."""
    found = []
    with TemporaryDirectory(prefix="foretell-bench-") as name:
        async with running_services(Path(name)) as services:
            engines = await start_paced(services, ENGINES, plan.python, plan.model)
            for round_ in range(plan.rounds):
                for scenario, contender in product(SCENARIOS, CONTENDERS):
                    await forget_prefixes(engines.urls)
                    one = await _run(plan, round_, (scenario, contender), engines.urls)
                    found.append(one)
                    print(one, file=sys.stderr, flush=True)
    return found


async def _run(
    plan: cluster.Plan, round_: int, what: tuple[str, str], urls: tuple[str, ...]
) -> dict[str, Any]:
    scenario, contender = what
    place, beside, with_targets = CONTENDERS[contender]
    chains = chains_of(plan, round_, SCENARIOS[scenario], with_targets=with_targets)
    seen = list[check.Answered]()
    name = f"{round_}-{scenario}-{contender}".replace(" ", "-").replace(",", "")
    asking = asyncio.create_task(_ask_offline(urls[place], round_, seen)) if beside else None
    began_s = time.monotonic()
    try:
        answers = await send(chains, urls[place], MODEL_NAME, name, tell_engine=with_targets)
        seconds = time.monotonic() - began_s
    finally:
        if asking is not None:
            asking.cancel()
            await asyncio.wait([asking])
    about = {"scenario": scenario, "contender": contender, "round": round_}
    return {**about, **_figures(answers, seen, seconds)}


async def _ask_offline(url: str, seed: int, seen: list[check.Answered]) -> None:
    """Keep the engine supplied until cancelled."""
    lines, body = check.questions(seed, *_TEXTS), check.offline(MODEL_NAME, f"{seed}")
    async with StreamClient(url) as client:
        await check.keep_busy(client, lines, body, AT_ONCE, inf, seen)


def _figures(
    answers: list[Answered], seen: list[check.Answered], seconds: float
) -> dict[str, float]:
    ttfts, tpots = [each.ttft_s for each in answers], [each.tpot_s for each in answers]
    kept = sum(t <= TARGETS_S[0] and p <= TARGETS_S[1] for t, p in zip(ttfts, tpots, strict=True))
    prompts = sum(each.prompt_tokens for each in seen)
    figures = {
        **{f"ttft_p{level}_s": percentile(ttfts, level) for level in (50, 99)},
        **{f"tpot_p{level}_s": percentile(tpots, level) for level in (50, 99)},
        "met": kept / len(answers),
        "offline_per_s": len(seen) / seconds,
        "hits": sum(each.cached_tokens for each in seen) / prompts if prompts else 0.0,
        "seconds": seconds,
    }
    return {name: round(value, 4) for name, value in figures.items()}


def tables(numbers: Numbers) -> Blocks:
    """A table for each scenario, with one row for each contender."""
    runs = numbers["runs"]
    rounds = len({one["round"] for one in runs})
    text = (
        f"*As deployed* but for the model: real vLLM on the CPU at the pace of {numbers['profile']}"
        f", {rounds} rounds of {numbers['requests']} online requests, the same for all; ± is half "
        "the 95% interval over rounds. *hits*: share of the offline prompt tokens that were "
        "cached. *burst*: the requests of ten seconds come within one.\n"
    )
    lines = [made_by(numbers), text]
    for scenario in SCENARIOS:
        lines.append(_table(scenario, [one for one in runs if one["scenario"] == scenario]))
    return {"tables": "\n".join(lines)}


def _table(scenario: str, runs: list[dict[str, Any]]) -> str:
    header = (
        scenario,
        "TTFT P50, ms",
        "TTFT P99",
        "TPOT P50",
        "TPOT P99",
        "targets met",
        "offline requests/s",
        "hits",
    )
    rows = []
    for name in dict.fromkeys(one["contender"] for one in runs):
        own = [one for one in runs if one["contender"] == name]
        cells = [
            plus_minus([1e3 * one[f"{what}_s"] for one in own], 1)
            for what in ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
        ]
        met, hits = (fmean(one[what] for one in own) for what in ("met", "hits"))
        offline = plus_minus([one["offline_per_s"] for one in own], 2)
        rows.append((name, *cells, f"{met:.1%}", offline, f"{hits:.0%}"))
    return markdown_table(header, rows)


def arguments(parser: argparse.ArgumentParser) -> None:
    cluster.arguments(parser, rounds=3, requests=60)


def measure(options: argparse.Namespace) -> Numbers:
    """Make all runs."""
    plan = cluster.Plan.of(options, list(CONTENDERS))
    return {"profile": PROFILE, "requests": plan.requests, "runs": asyncio.run(run(plan))}
