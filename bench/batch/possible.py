"""How much of a batch is possible beside online requests in time, and how much of that is reached?

The scenario is that of `batch.interference`, in virtual time. What is possible is found by trying
constant numbers of offline requests; the rule of the batch service has to find its number by what
is foretold.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import inf
from random import Random
from typing import Any

from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.stats import percentile
from foretell.batch.release import Release, Seen
from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.model import BatchShape, GpuProfile
from foretell.sim.beside import LOWEST_PRIORITY, OfflineRun, Windows
from foretell.sim.config import ClusterConfig, InstanceConfig
from foretell.tools.progress import progress
from foretell.workload import Arrival

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(__file__, __doc__, takes="5 minutes")
PROFILE = "H100/Llama-3.1-8B"
ENGINES = 2
_ONLINE, _OFFLINE = (128, 64), (256, 128)
"""Tokens of prompts and answers."""
_BURST_S, _QUIET_S, _QUIET_RATIO = 4.0, 4.0, 0.25
_WARM_UP_S = 15.0
CONSTANT = (4, 8, 16, 32, 64, 96, 128, 192, 256, 384)
TARGETS_MS = (0.0, 30.0, 40.0, 60.0, 100.0)
"""TTFT targets of the rule; 0: none."""


@dataclass(slots=True)
class Constant:
    """So many offline requests, reached as slowly as the rule would."""

    most: int
    window: int = 1

    def observe(self, instances: dict[str, Seen], in_flight: int) -> None:
        """Whatever is seen."""
        self.window = min(self.most, max(self.window + 1, int(1.1 * self.window)))


def cluster(profile: GpuProfile) -> ClusterConfig:
    """Engines with vLLM's defaults."""
    engine = profile.engine(async_scheduling=True)
    return ClusterConfig((InstanceConfig(engine, profile_step_time(profile)),) * ENGINES)


def online(rate_per_s: float, seconds: float, draws: Random) -> list[Arrival]:
    """Requests in bursts."""
    found: list[Arrival] = []
    now_s = 0.0
    while True:
        burst = now_s % (_BURST_S + _QUIET_S) < _BURST_S
        now_s += draws.expovariate(rate_per_s * (1.0 if burst else _QUIET_RATIO))
        if now_s > seconds:
            return found
        found.append(Arrival(now_s, *_ONLINE, f"online-{len(found)}"))


def offline() -> Iterator[Arrival]:
    """A batch without an end."""
    return (Arrival(0.0, *_OFFLINE, f"line-{n}", priority=LOWEST_PRIORITY) for n in count())


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--rate", type=float, default=15.0, help="Online requests a second.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13, 14])


def _figures(windows: Sequence[Windows | None], options: argparse.Namespace) -> dict[str, float]:
    """One setting over all seeds."""
    config, ttft_s, tpot_s, tokens = cluster(load_profile(PROFILE)), [], [], 0
    for seed, window in zip(options.seeds, windows, strict=True):
        arrivals = online(options.rate, options.seconds, Random(seed))
        lines = offline() if window else iter(())
        found = OfflineRun(config, arrivals, lines, window or Constant(0)).run(options.seconds)
        for sent_s, first_s, each_s in zip(found.sent_s, found.ttft_s, found.tpot_s, strict=True):
            if sent_s >= _WARM_UP_S:
                ttft_s.append(first_s)
                tpot_s.append(each_s)
        ends = zip(found.offline_ended_s, found.offline_tokens, strict=True)
        tokens += sum(each for at_s, each in ends if _WARM_UP_S <= at_s < options.seconds)
    return {
        "requests": len(ttft_s),
        **{f"ttft_p{level}_ms": 1000 * percentile(ttft_s, level) for level in (50, 90, 99)},
        "tpot_p99_ms": 1000 * percentile(tpot_s, 99),
        "tokens_per_s": tokens / (len(options.seeds) * (options.seconds - _WARM_UP_S)),
    }


def measure(options: argparse.Namespace) -> Numbers:
    """All settings, and the time of single steps."""
    asked = {name: getattr(options, name) for name in ("seconds", "rate", "seeds")}
    each = range(len(options.seeds))
    runs: list[dict[str, Any]] = []
    settings = (
        *(("constant", number) for number in (0, *CONSTANT)),
        *(("rule", target_ms) for target_ms in TARGETS_MS),
    )
    with progress() as bar:
        for kind, value in bar.track(settings, len(settings), description="settings"):
            windows: list[Windows | None] = [None for _ in each]
            if kind == "rule":
                windows = [Release(value / 1000 or inf) for _ in each]
            elif value:
                windows = [Constant(int(value)) for _ in each]
            runs.append({"kind": kind, "value": value, **_figures(windows, options)})
    model = profile_step_time(load_profile(PROFILE))
    prompt = _OFFLINE[0]
    steps = {
        str(decodes): [
            1000 * model.step_s(BatchShape(0, 0, 0, decodes, decodes * prompt)),
            1000 * model.step_s(BatchShape(1, prompt, prompt**2 // 2, decodes, decodes * prompt)),
        ]
        for decodes in (3, 16, 64, 128)
    }
    return {**asked, "runs": runs, "steps_ms": steps}


def possible(runs: Sequence[dict[str, Any]], ttft_p99_ms: float) -> float:
    """Tokens a second that a constant number gives at this P99 TTFT, between those tried."""
    known = [(0.0, 0.0)]
    for run in runs:
        if run["kind"] == "constant" and run["ttft_p99_ms"] > known[-1][0]:
            known.append((run["ttft_p99_ms"], run["tokens_per_s"]))
    for (low_ms, low), (high_ms, high) in pairwise(known):
        if ttft_p99_ms <= high_ms:
            return float(low + (high - low) * (ttft_p99_ms - low_ms) / (high_ms - low_ms))
    return float(known[-1][1])


def tables(page: Numbers) -> Blocks:
    """What is possible, what the rule reaches, and what a step takes."""
    runs: list[dict[str, Any]] = page["runs"]
    alone_ms = next(run["ttft_p99_ms"] for run in runs if run["value"] == 0)
    rows = []
    for run in runs:
        name = f"{run['value']} at any time" if run["value"] else "no batch"
        if run["kind"] == "rule":
            name = f"rule, target {run['value']:g} ms" if run["value"] else "rule, no target"
        p99_ms = run["ttft_p99_ms"]
        reached = run["tokens_per_s"] / max(1.0, possible(runs, p99_ms))
        rows.append(
            (
                name,
                *(f"{run[f'ttft_p{level}_ms']:.1f}" for level in (50, 90, 99)),
                f"{p99_ms / alone_ms:.2f}",
                f"{run['tpot_p99_ms']:.1f}",
                f"{run['tokens_per_s']:,.0f}",
                f"{reached:.0%}" if run["kind"] == "rule" else "",
            )
        )
    text = (
        f"{ENGINES} engines of {PROFILE} in virtual time, asynchronous scheduling, first come, "
        f"first served; {page['rate']:g} online requests a second in bursts; "
        f"{len(page['seeds'])} seeds of {page['seconds']:g} s without the first {_WARM_UP_S:g} s, "
        f"{runs[0]['requests']} online requests.\n"
    )
    head = ("", "P50 TTFT, ms", "P90", "P99", "over alone", "P99 TPOT, ms", "batch, tokens/s")
    steps = [
        (name, *(f"{each_ms:.1f}" for each_ms in both)) for name, both in page["steps_ms"].items()
    ]
    step_head = ("requests in a step", "step, ms", "with a line's prompt, ms")
    found = markdown_table((*head, "of what is possible at that P99"), rows)
    return {"tables": "\n".join((made_by(page), text, found, markdown_table(step_head, steps)))}
