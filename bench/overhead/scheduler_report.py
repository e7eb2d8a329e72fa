"""Turns the timings of bench.overhead.scheduler_latency into JSON, Markdown and a chart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.overhead.loads import Cell, Cells, Load, Measured, Timing
from bench.overhead.routes import HEALTH_INTERVAL_S, PROFILE, SPEEDUP
from bench.report import Blocks, Numbers, made_by, markdown_table
from bench.stats import percentile, percentiles

_BARS = {"p50": "#33658a", "p90": "#86bbd8", "p99": "#f6ae2d"}


def results_of(loads: Sequence[Load], measured: Measured) -> Numbers:
    """All numbers of a run."""
    return {
        "setup": {
            "engine": "emulated",
            "profile": PROFILE,
            "speedup": SPEEDUP,
            "tagger": "history only, no length model",
            "health_interval_s": HEALTH_INTERVAL_S,
        },
        "routes": measured.titles,
        "loads": [
            _load_result(load, list(measured.titles), measured.cells)
            | {"others_cores": round(measured.others_cores[load.key], 2)}
            for load in loads
        ],
    }


def _load_result(load: Load, keys: list[str], cells: Cells) -> dict[str, Any]:
    direct = cells[load.key, keys[0]]
    return {
        "key": load.key,
        "title": load.title,
        "max_tokens": load.max_tokens,
        "stream": load.stream,
        "concurrency": load.concurrency,
        "requests_per_route": load.rounds * load.per_round,
        "routes": {key: _cell_result(load, cells[load.key, key], direct) for key in keys},
    }


def _cell_result(load: Load, cell: Cell, direct: Cell) -> dict[str, Any]:
    timings = [timing for timings in cell.rounds for timing in timings]
    metrics, count = dict(cell.metrics), len(timings)
    result: dict[str, Any] = {
        "first_byte_ms": percentiles([t.first_byte_s for t in timings]),
        "total_ms": percentiles([t.total_s for t in timings]),
        "requests_per_s": round(count / cell.wall_s, 1),
        "cpu_ms_per_request": {
            role: round(1e3 * seconds / count, 3) for role, seconds in cell.cpu_s.items()
        },
    }
    if cell is direct:
        return result
    result["added"] = _added(load, cell, direct)
    result["placement_mean_ms"] = _mean_ms(metrics, "foretell_placement_seconds")
    result["predict_mean_ms"] = _mean_ms(metrics, "foretell_predict_seconds")
    result["degraded"] = {
        name.partition("/")[2]: round(value)
        for name, value in metrics.items()
        if name.startswith("degraded/") and value
    }
    return result


def _added(load: Load, cell: Cell, direct: Cell) -> dict[str, Any]:
    """What the route adds to the direct one; the quartiles are over rounds, side by side."""
    added: dict[str, Any] = {}
    for name in ("first_byte", "total"):
        ours, theirs = (_values(c.rounds, name) for c in (cell, direct))
        for level in (10, 50, 99):
            a, b = percentile(ours, level), percentile(theirs, level)
            added[f"{name}_p{level}_ms"] = round(1e3 * (a - b), 4)
            added[f"{name}_p{level}_ratio"] = round(a / b, 2)
        rounds = [
            1e3 * (percentile(_values([a], name), 50) - percentile(_values([b], name), 50))
            for a, b in zip(cell.rounds, direct.rounds, strict=True)
        ]
        added[f"{name}_p50_quartiles_ms"] = [round(percentile(rounds, q), 4) for q in (25, 75)]
    if load.stream and load.concurrency == 1:  # otherwise queueing hides it
        after_first = added["total_p50_ms"] - added["first_byte_p50_ms"]
        added["per_further_token_us"] = round(1e3 * after_first / (load.max_tokens - 1), 2)
    return added


def _values(rounds: list[list[Timing]], name: str) -> list[float]:
    return [getattr(timing, f"{name}_s") for timings in rounds for timing in timings]


def _mean_ms(metrics: Mapping[str, float], name: str) -> float | None:
    count = metrics.get(f"{name}_count", 0.0)
    return round(1e3 * metrics[f"{name}_sum"] / count, 4) if count else None


def tables(result: Numbers) -> Blocks:
    """Two tables for each load: latencies, and costs."""
    setup = result["setup"]
    parts = [
        made_by(result),
        "The engines are emulated "
        f"(profile {setup['profile']} at speedup {setup['speedup']:g}): a step takes no longer "
        "than the engine's process needs to make and send its tokens, so these are costs of the "
        "way to an engine and say nothing of a GPU. Client and all services share the cores; "
        "the routes are measured in turns within one run. The tagger answers from history. "
        "`added` is the difference to the engine alone at the same percentile; "
        "in brackets, the quartiles of the medians' difference over the rounds. "
        "p10 is the nearest to what a quieter machine would show. "
        "Sixteen requests in flight keep the cores busy: there, latency is throughput.\n",
        "![first byte and total latency by route](results/scheduler_latency.svg)\n",
    ]
    for load in result["loads"]:
        parts += [
            f"## {load['title'].capitalize()}\n",
            f"{load['requests_per_route']} requests per route. Meanwhile other processes on the "
            f"machine kept {load['others_cores']} cores busy.\n",
            _latency_table(load, result["routes"]),
            _cost_table(load, result["routes"]),
        ]
    return {"tables": "\n".join(parts)}


def _latency_table(load: dict[str, Any], titles: dict[str, str]) -> str:
    streamed = load["stream"]
    what = "first byte" if streamed else "answer"
    header = [f"{what}, ms", "p10", "p50", "p90", "p99"]
    header += ["added p10", "added p50", "added p99", "ratio p50"]
    if streamed:
        header += ["whole answer p50", "added p50", "added per further token, µs"]
    rows = []
    for key, cell in load["routes"].items():
        name = "first_byte" if streamed else "total"
        row = [titles[key], *(f"{value:.2f}" for value in cell[f"{name}_ms"].values())]
        if added := cell.get("added"):
            low, high = added[f"{name}_p50_quartiles_ms"]
            row += [
                f"{added[f'{name}_p10_ms']:.2f}",
                f"{added[f'{name}_p50_ms']:.2f} ({low:.2f} to {high:.2f})",
                f"{added[f'{name}_p99_ms']:.2f}",
                f"{added[f'{name}_p50_ratio']:.2f}",
            ]
        else:
            row += ["", "", "", ""]
        if streamed:
            row.append(f"{cell['total_ms']['p50']:.2f}")
            row.append(f"{added['total_p50_ms']:.2f}" if added else "")
            per_token = (added or {}).get("per_further_token_us")
            row.append("" if per_token is None else f"{per_token:.0f}")
        rows.append(row)
    return markdown_table(header, rows)


def _cost_table(load: dict[str, Any], titles: dict[str, str]) -> str:
    header = [
        "cost per request",
        "requests/s",
        "scheduler CPU ms",
        "predictors CPU ms",
        "tagger CPU ms",
        "engines CPU ms",
        "placement mean ms",
        "predict mean ms",
        "degraded",
    ]
    rows = [
        [
            titles[key],
            cell["requests_per_s"],
            *(f"{value:.2f}" for value in cell["cpu_ms_per_request"].values()),
            *(_or_blank(cell.get(name)) for name in ("placement_mean_ms", "predict_mean_ms")),
            ", ".join(f"{n} without {what}" for what, n in cell.get("degraded", {}).items()),
        ]
        for key, cell in load["routes"].items()
    ]
    return markdown_table(header, rows)


def _or_blank(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def chart(file: Path, result: Numbers) -> None:
    """Draw one panel per load: p50, p90 and p99 to the first byte (streamed) or to the answer."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  only the picture needs it

    plt.rcParams.update({"svg.hashsalt": file.stem, "svg.fonttype": "none", "font.size": 8})
    figure, panels = plt.subplots(len(result["loads"]), 1, figsize=(8, 2 * len(result["loads"])))
    titles = list(result["routes"].values())
    for axes, load in zip(panels, result["loads"], strict=True):
        name = "first_byte_ms" if load["stream"] else "total_ms"
        cells = [load["routes"][key][name] for key in result["routes"]]
        for level in reversed(_BARS):  # the longest first: the others lie over it
            axes.barh(titles, [cell[level] for cell in cells], color=_BARS[level], label=level)
        axes.invert_yaxis()
        axes.set_title(load["title"], loc="left")
        axes.set_xlabel("ms to the first byte" if load["stream"] else "ms to the answer")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Emulated engines: latency on the way to them", x=0.01, ha="left")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="upper right", ncols=3, frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
