"""How much sooner is a file of offline requests done in the order that blends densities?

Traces 1 to 4 of BlendServe (ASPLOS '26, table 2) are made by its recipe from other sources
(`bench.offline.mixes`) and served by one simulated engine: scheduling, KV blocks, prefix cache and
preemptions are those of the twin of vLLM's scheduler, a step takes as long as the sums of computing
and reading say. Orders are FCFS (as handed in, one source after the other), random, depth-first,
BlendServe's dual scan with known and with sampled lengths, and feedback control with both.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bench.offline.blend_runs import DFS, FCFS, RANDOM, TRACES, WORK, Setting, kept, optimum_s
from bench.offline.blend_runs import serve as serve_setting
from bench.offline.mixes import VIDEO_TOKENS
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from bench.stats import plus_minus
from foretell.model import BatchShape
from foretell.sim.offline import OverlappedStepTime
from foretell.tools.pictures import figure, save

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="70 minutes",
    paths={"DATA": "folder with traces/ and offline/"},
    processes=1,
)
ENGINES = {"overlapping": OverlappedStepTime(WORK), "plain": OverlappedStepTime(WORK, overlap=1.0)}
ORDERS = (
    FCFS,
    RANDOM,
    DFS,
    "BlendServe, known",
    "BlendServe, sampled",
    "feedback, known",
    "feedback, sampled",
)
PLAIN = (FCFS, DFS, "feedback, sampled")
"""Orders that are also run on an engine that does one operator after the other."""
DRAWN = (FCFS, DFS, "BlendServe, sampled", "feedback, sampled")
DRAWN_OF = ("2", "overlapping", 1)
"""Trace, engine and seed of the runs whose use of the GPU is drawn."""
_BINS = 200


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    trace: str
    engine: str
    order: str
    seed: int


def serve(case: Case, data: Path, requests: int, video_tokens: int) -> dict[str, Any]:
    """The figures of one case."""
    density, sharing = TRACES[case.trace]
    engine = ENGINES[case.engine]
    setting = Setting(density, sharing, case.seed, requests, video_tokens, step=engine)
    usage = np.zeros((3, _BINS))
    _, bound = optimum_s(setting, *setting.made(data))

    def watch(at_s: float, seconds: float, shape: BatchShape) -> None:
        place = min(_BINS - 1, int(_BINS * at_s / (3.0 * bound)))
        tokens = shape.prefill_tokens + shape.decode_seqs
        memory_s = WORK.decode_pair_s * shape.decode_pairs
        usage[:, place] += (WORK.prefill_token_s * tokens, memory_s, seconds)

    _, found = serve_setting(case.order, setting, data, watch)
    return {
        **asdict(case),
        **found,
        "usage": np.round(usage / np.maximum(usage[2], 1e-9), 3)[:2, usage[2] > 0].tolist(),
        "bin_s": round(3.0 * bound / _BINS, 2),
    }


def served(case: Case, data: Path, requests: int, video_tokens: int) -> dict[str, Any]:
    """`serve`, unless a benchmark that was interrupted has done so."""
    wanted = {**asdict(case), "video_tokens": video_tokens, "asked": requests}
    return kept(BENCH.kept, wanted, partial(serve, case, data, requests, video_tokens))


def tables(numbers: Numbers) -> Blocks:
    """A table for each engine."""
    runs = numbers["runs"]
    seeds = len({one["seed"] for one in runs})
    lines = [
        made_by(numbers),
        f"*Laboratory*: simulated engine, {runs[0]['requests']:,} requests, answers of videos "
        f"{runs[0].get('video_tokens', 4096):,} tokens on average, {seeds} seeds (other "
        "prompts, lengths and questions in each); ± is half the 95% interval over seeds. "
        "*to DFS*: throughput over that of depth-first order on the same engine. *optimum*: share "
        "of the paper's practical optimum, all computing and reading overlapped as well as the "
        "engine can, without the cost of a step. *bound*: share of the lower bound that counts "
        "this too; its row says how much faster than depth-first order anything can be. "
        "*sharing*: share of the prefix sharing possible that was achieved.\n",
    ]
    for engine, trace in product(ENGINES, TRACES):
        chosen = [one for one in runs if (one["engine"], one["trace"]) == (engine, trace)]
        if not chosen:
            continue
        dfs = {one["seed"]: one["seconds"] for one in chosen if one["order"] == DFS}
        title = (
            f"trace {trace}, {engine} (density {fmean(o['density'] for o in chosen):.2f}, sharing "
            f"{fmean(o['sharing'] for o in chosen):.0%})"
        )
        header = (title, "to DFS", "optimum", "bound", "sharing", "tokens/s", "preemptions")
        rows = [_row([o for o in chosen if o["order"] == name], dfs) for name in _orders(chosen)]
        rows.append(_bound([o for o in chosen if o["order"] == DFS]))
        lines.append(markdown_table(header, rows))
    return {"tables": "\n".join(lines)}


def _orders(runs: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["order"] for one in runs))


def _bound(dfs: list[dict[str, Any]]) -> tuple[str, ...]:
    """What no order can be better than, beside depth-first order."""
    most = fmean(1.0 / one["share_of_bound"] for one in dfs)
    optimum = fmean(one["share_of_optimum"] / one["share_of_bound"] for one in dfs)
    return "*bound*", f"{most:.3f}", f"{optimum:.3f}", "1.000", "100.0%", "", ""


def _row(runs: list[dict[str, Any]], dfs_s: dict[int, float]) -> tuple[str, ...]:
    ratios = [dfs_s[one["seed"]] / one["seconds"] for one in runs]

    def mean(values: list[float], digits: int) -> str:
        several = len(values) > 1
        return plus_minus(values, digits) if several else f"{values[0]:.{digits}f}"

    return (
        runs[0]["order"],
        mean(ratios, 3),
        mean([one["share_of_optimum"] for one in runs], 3),
        mean([one["share_of_bound"] for one in runs], 3),
        f"{fmean(one['sharing_kept'] for one in runs):.1%}",
        f"{fmean(one['tokens_per_s'] for one in runs):,.0f}",
        f"{fmean(one['preemptions'] for one in runs):,.0f}",
    )


def draw(numbers: Numbers, save_to: Callable[[str], Path]) -> None:
    """Which part of every second was computing and reading, of trace 2."""
    ran = {one["order"] for one in numbers["runs"] if one["trace"] == "2"}
    orders = [each for each in DRAWN if each in ran]
    if len(orders) < 2:
        return
    picture = figure(9.0, 5.5)
    axes = picture.subplots(len(orders), 1, sharex=True, sharey=True)
    for axis, order in zip(axes, orders, strict=True):
        one = next(
            o
            for o in numbers["runs"]
            if (o["trace"], o["engine"], o["seed"]) == DRAWN_OF and o["order"] == order
        )
        times = [one["bin_s"] / 3600 * place for place in range(len(one["usage"][0]))]
        axis.plot(times, one["usage"][0], label="computing")
        axis.plot(times, one["usage"][1], label="reading the KV cache")
        axis.set_ylabel(order, fontsize=8)
        axis.set_ylim(0, 1.05)
    axes[0].legend(loc="upper right", fontsize=8)
    axes[0].set_title("Share of the time, trace 2, simulated", fontsize=9)
    axes[-1].set_xlabel("hours")
    save(picture, save_to("-usage.svg"))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=200_000, help="Requests of a file.")
    parser.add_argument("--seeds", type=int, default=5)
    text = "Mean answer of videos; the paper's are too long for small files."
    parser.add_argument("--video-tokens", type=int, default=VIDEO_TOKENS, help=text)
    parser.add_argument("--traces", nargs="+", default=list(TRACES), choices=TRACES)
    parser.add_argument("--orders", nargs="+", default=list(ORDERS), choices=ORDERS)


def measure(options: argparse.Namespace) -> Numbers:
    """Run every order on every trace, and some on an engine without overlap."""
    seeds = range(1, options.seeds + 1)
    plain = [order for order in PLAIN if order in options.orders and "2" in options.traces]
    cases = [
        Case(trace, "overlapping", order, seed)
        for seed, trace, order in product(seeds, options.traces, options.orders)
    ]
    cases += [Case("2", "plain", order, seed) for seed, order in product(seeds, plain)]
    one = partial(
        served, data=options.data, requests=options.requests, video_tokens=options.video_tokens
    )
    runs = run_each(one, cases, options.processes)
    BENCH.kept.unlink()
    for run in runs:
        if (run["trace"], run["engine"], run["seed"]) != DRAWN_OF:
            del run["usage"], run["bin_s"]
    numbers = {"runs": runs, "cpu_s": round(sum(found["cpu_s"] for found in runs))}
    if options.write:
        draw(numbers, BENCH.result)
    return numbers


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
