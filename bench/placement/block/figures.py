"""Pictures: what depends on the rate, distributions, memory over time."""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bench.placement.block import settings as given
from bench.placement.block.runs import CURVE, Result, Results
from bench.placement.block.settings import Case, Scheduler
from bench.report import Benchmark
from foretell.tools.pictures import figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Lookup = Callable[[Scheduler, float, int], Result]
_COLOURS: Mapping[str, str] = {
    given.RANDOM.title: "#b0b0b0",
    given.ROUND_ROBIN.title: "#7f8c3a",
    given.MIN_QPM.title: "#9467bd",
    given.INFAAS.title: "#ff9d2e",
    given.LLUMNIX.title: "#2b8cd6",
    given.BLOCK_STAR.title: "#d62728",
    given.BLOCK_STAR_SURVIVAL.title: "#f2a0a0",
    given.BLOCK.title: "#000000",
}
_DRAWN = (given.RANDOM, given.INFAAS, given.LLUMNIX, given.BLOCK_STAR, given.BLOCK)
"""In distributions and over time, where eight lines would be too many."""


def draw_all(kept: Results, bench: Benchmark) -> None:
    """Draw three PNG files; needs matplotlib."""

    def lookup(scheduler: Scheduler, qps: float, seed: int) -> Result:
        return kept[Case(given.DEFAULT, scheduler, float(qps), seed)]

    _draw_rates(lookup, bench.result("-latency.png"))
    _draw_distributions(lookup, bench.result("-distributions.png"))
    _draw_memory(lookup, bench.result("-memory.png"))


def _draw_rates(lookup: Lookup, path: Path) -> None:
    """The paper's Figure 6 without overheads and throughput."""
    picture = figure(10.5, 6.4)
    panels = (
        ("ttft_mean_s", "mean TTFT, s"),
        ("e2e_mean_s", "mean e2e latency, s"),
        ("ttft_p99_s", "P99 TTFT, s"),
        ("e2e_p99_s", "P99 e2e latency, s"),
    )
    for axis, (name, title) in zip(picture.subplots(2, 2).flat, panels, strict=True):
        for scheduler in given.SCHEDULERS:
            values = [
                fmean(lookup(scheduler, qps, seed)[name] for seed in given.SWEEP_SEEDS)
                for qps in given.SWEEP_QPS
            ]
            axis.plot(given.SWEEP_QPS, values, marker=".", **_style(scheduler))
        if name.startswith("ttft"):
            axis.set_yscale("log")
        if name == "ttft_p99_s":
            axis.axhline(given.TTFT_BOUND_S, color="0.6", linewidth=0.8, linestyle="--")
        axis.set_xlabel("requests a second")
        axis.set_ylabel(title)
    handles, labels = axis.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    save(picture, path)


def _draw_distributions(lookup: Lookup, path: Path) -> None:
    picture = figure(10.5, 5.6)
    axes = picture.subplots(2, len(given.DRAWN_QPS), squeeze=False)
    for column, qps in enumerate(given.DRAWN_QPS):
        for row, (name, title) in enumerate((("ttft_curve_s", "TTFT"), ("e2e_curve_s", "e2e"))):
            axis: Axes = axes[row][column]
            for scheduler in _DRAWN:
                result = lookup(scheduler, qps, given.SWEEP_SEEDS[0])
                axis.plot(result[name], CURVE, **_style(scheduler))
            axis.set_ylim(0.5 if name == "ttft_curve_s" else 0.0, 1.0)
            axis.set_xlabel(f"{title} latency, s" if title == "e2e" else f"{title}, s")
            if name == "ttft_curve_s":
                axis.set_xscale("log")
                axis.set_title(f"{qps} requests a second", fontsize="medium")
            if column == 0:
                axis.set_ylabel("share of requests")
    handles, labels = axes[0][0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    save(picture, path)


def _draw_memory(lookup: Lookup, path: Path) -> None:
    """The first two rows of the paper's Figure 7, until the last request arrives."""
    picture = figure(10.5, 5.6)
    axes = picture.subplots(2, len(given.DRAWN_QPS), squeeze=False)
    for column, qps in enumerate(given.DRAWN_QPS):
        for scheduler in _DRAWN:
            memory = lookup(scheduler, qps, given.SWEEP_SEEDS[0])["memory"]
            arriving = [sample for sample in memory if sample[0] <= given.DEFAULT.requests / qps]
            times_s, means, variances = zip(*arriving, strict=True)
            axes[0][column].plot(times_s, means, **_style(scheduler))
            axes[1][column].plot(times_s, _smooth(variances), **_style(scheduler))
        axes[0][column].set_title(f"{qps} requests a second", fontsize="medium")
        axes[1][column].set_xlabel("time, s")
    axes[0][0].set_ylabel("free blocks, mean of instances")
    axes[1][0].set_ylabel("free blocks, variance of instances")
    handles, labels = axes[0][0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    save(picture, path)


def _smooth(values: tuple[float, ...], width: int = 5) -> list[float]:
    """Moving means, as the artifact smooths its own."""
    half = width // 2
    return [fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def _style(scheduler: Scheduler) -> dict[str, Any]:
    return {"label": scheduler.title, "color": _COLOURS[scheduler.title], "linewidth": 1.4}
