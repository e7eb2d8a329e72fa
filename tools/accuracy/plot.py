"""Scatter plots of predicted against actual latencies."""

from collections.abc import Sequence
from pathlib import Path

from foretell.sim.accuracy import METRICS
from foretell.tools.accuracy.replayed import Evaluation
from foretell.tools.pictures import figure, save

_UNITS = {"ttft": (1.0, "s"), "tpot": (1e3, "ms"), "e2e": (1.0, "s")}


def scatter(evaluations: Sequence[tuple[str, Evaluation]], path: Path) -> None:
    """One row of plots (TTFT, TPOT, e2e) per evaluation, written to `path` (.svg or .png)."""
    picture = figure(9.6, 3.1 * len(evaluations))
    axes = picture.subplots(len(evaluations), len(METRICS), squeeze=False)
    for row, (title, evaluation) in zip(axes, evaluations, strict=True):
        for axis, (name, value) in zip(row, METRICS.items(), strict=True):
            scale, unit = _UNITS[name]
            actual = [scale * value(latency) for latency in evaluation.actual]
            predicted = [scale * value(latency) for latency in evaluation.predicted]
            low, high = min(*actual, *predicted), max(*actual, *predicted)
            axis.plot([low, high], [low, high], color="0.6", linewidth=0.8)
            axis.scatter(actual, predicted, s=5, alpha=0.6, linewidths=0)
            if name == "ttft":  # from one step to a long queue
                axis.set_xscale("log")
                axis.set_yscale("log")
            axis.set_xlabel(f"actual {name.upper() if name != 'e2e' else name}, {unit}")
            axis.set_ylabel(f"predicted, {unit}")
            axis.set_title(title, fontsize="medium")
    save(picture, path)
