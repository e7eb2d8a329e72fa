"""Pictures of a run."""

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from foretell.tools.pictures import figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from foretell.tools.simulate.run import Run


def draw_run(run: "Run", path: Path) -> None:
    """Distributions of TTFT and e2e latency, and free blocks over time; .svg or .png."""
    picture = figure(11.0, 3.4)
    ttft, e2e, blocks = picture.subplots(1, 3)
    served = run.report.served
    _distribution(ttft, [r.ttft_s for r in served], "TTFT")
    ttft.set_xscale("log")  # from one step to a long queue
    ttft.xaxis.set_minor_formatter("")  # none
    _distribution(e2e, [r.e2e_s for r in served], "e2e latency")
    _free_blocks(blocks, run)
    facts = run.facts
    picture.suptitle(
        f"{facts['policy']}, {facts['profile']}, {facts['qps']:g} requests a second, "
        f"seed {facts['seed']}",
        fontsize="medium",
    )
    save(picture, path)


def _distribution(axis: "Axes", values: list[float], name: str) -> None:
    ordered = sorted(values)
    shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
    axis.step(ordered, shares, where="post")
    axis.axhline(0.99, color="0.7", linewidth=0.8)
    axis.set_xlabel(f"{name}, s")
    axis.set_ylabel("share of requests")
    axis.set_ylim(0, 1)


def _free_blocks(axis: "Axes", run: "Run") -> None:
    """The mean over the engines, and a shade from the fewest to the most."""
    samples = run.report.samples
    times_s = [at_s for at_s, _ in samples]
    axis.fill_between(
        times_s,
        [min(free) for _, free in samples],
        [max(free) for _, free in samples],
        alpha=0.25,
        linewidth=0,
    )
    axis.plot(times_s, [fmean(free) for _, free in samples])
    axis.set_xlabel("time, s")
    axis.set_ylabel("free KV blocks of an engine")
