"""What is told of the bound on placement: tables and a picture."""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from bench.block.beyond import SETTINGS, change
from bench.block.bound_runs import BUSY, BUSY_SETTINGS, CONVEX, SEARCHED, Row
from bench.block.capacity import interval
from bench.stats import markdown_table
from cli.bench.machine import machine_line

BLOCK, LATE_BINDING = "Block", "late_binding"
_BUSY_NAMES = ("tokens_per_s", "requests_per_s")


def markdown(page: Mapping[str, Any], of_policies: Sequence[Row]) -> str:
    """`of_policies`: the rows of `bench.beyond_block`."""
    rows = [*_as_servers(of_policies), *page["rows"]]
    lines = [
        f"Made by `{page['command']}` on {page['date']} ({page['cpu_s']:,} CPU seconds of runs); "
        f"{machine_line(page['machine'])}.\n",
        "Policies: from bench/results/beyond_block.json, with the same requests seed by seed. "
        "Capacities as there; ± is half of a 95% confidence interval, changes are geometric means "
        "of ratios to Block's, taken seed by seed, with their interval.\n",
        "### In short\n",
        _short(rows),
        "### Capacity, and TTFT at Block's capacity\n",
    ]
    for setting in SETTINGS:
        mine = [row for row in rows if row["setting"] == setting.name]
        header = (setting.name, "capacity", "change", "P99 TTFT", "change", "mean TTFT")
        titles = dict.fromkeys(row["server"] for row in mine)
        table = [_capacity_row(title, mine) for title in titles]
        lines.append(markdown_table((*header, "preemptions per 1,000"), table))
    lines += ["### Far beyond capacity\n", *_busy(page["busy"])]
    return "\n".join(lines)


def _as_servers(of_policies: Iterable[Row]) -> list[Row]:
    return [{**row, "server": row["scheduler"]} for row in of_policies]


def _short(rows: Sequence[Row]) -> str:
    """Block's, our best and the pool's, a row for each setting."""
    table = []
    for setting in SETTINGS:
        mine = [row for row in rows if row["setting"] == setting.name]
        block, pool = _of(mine, BLOCK), _of(mine, CONVEX.title)
        ours = best_of_ours(mine)
        table.append(
            (
                setting.name,
                change(_ratios(pool, block, "capacity_qps")),
                share(block, pool),
                f"{share(_of(mine, ours), pool)} ({ours})",
                *(
                    f"{interval([row['ttft_p99_s'] for row in _of(mine, title)])[0]:.2f} s"
                    for title in (BLOCK, ours, CONVEX.title)
                ),
            )
        )
    header = (
        "setting",
        "the pool's capacity over Block's",
        "Block has of it",
        "our best has of it",
    )
    at = ("P99 TTFT at Block's capacity: Block", "our best", "the pool")
    return markdown_table((*header, *at), table)


def best_of_ours(mine: Sequence[Row]) -> str:
    """The policy with the most capacity, but Block's."""
    pools = {server.title for server in SEARCHED}
    ours = {row["server"] for row in mine} - pools - {BLOCK}
    return max(sorted(map(str, ours)), key=lambda title: _mean_log(_of(mine, title)))


def _mean_log(rows: Sequence[Row]) -> float:
    return interval([log(row["capacity_qps"]) for row in rows])[0]


def share(mine: Sequence[Row], pool: Sequence[Row]) -> str:
    """Of the pool's capacity; geometric mean of the seeds."""
    ratios = _ratios(mine, pool, "capacity_qps")
    return f"{exp(interval([log(ratio) for ratio in ratios])[0]):.1%}"


def _capacity_row(title: str, rows: Sequence[Row]) -> tuple[str, ...]:
    mine, block = _of(rows, title), _of(rows, BLOCK)
    mean, half = interval([row["capacity_qps"] for row in mine])
    p99 = interval([row["ttft_p99_s"] for row in mine])[0]
    preempted = interval([row["preemptions_per_1000"] for row in mine])[0]
    is_block = title == BLOCK
    return (
        title,
        f"{mean:.1f} ± {half:.1f}",
        "" if is_block else change(_ratios(mine, block, "capacity_qps")),
        f"{p99:.2f} s",
        "" if is_block else change(_ratios(mine, block, "ttft_p99_s")),
        f"{interval([row['ttft_mean_s'] for row in mine])[0]:.2f} s",
        f"{preempted:.0f}",
    )


def _busy(rows: Sequence[Row]) -> Iterable[str]:
    for setting in BUSY_SETTINGS:
        mine = [row for row in rows if row["setting"] == setting.name]
        header = (setting.name, "output tokens a second", "change", "requests a second")
        table = [_busy_row(server.title, mine) for server in BUSY]
        yield markdown_table((*header, "computed again", "preemptions per 1,000"), table)


def _busy_row(title: str, rows: Sequence[Row]) -> tuple[str, ...]:
    mine, block = _of(rows, title), _of(rows, BLOCK)
    means = [interval([row[name] for row in mine])[0] for name in _BUSY_NAMES]
    again, preempted = (
        interval([row[name] for row in mine])[0] for name in ("recomputed", "preemptions_per_1000")
    )
    return (
        title,
        f"{means[0]:,.0f}",
        "" if title == BLOCK else change(_ratios(mine, block, "tokens_per_s")),
        f"{means[1]:.1f}",
        f"{again:.1%}",
        f"{preempted:.0f}",
    )


def _of(rows: Iterable[Row], title: str) -> list[Row]:
    return sorted((r for r in rows if r["server"] == title), key=lambda r: int(r["seed"]))


def _ratios(mine: Sequence[Row], block: Sequence[Row], name: str) -> list[float]:
    theirs = {row["seed"]: row[name] for row in block}
    return [row[name] / theirs[row["seed"]] for row in mine]


def draw(rows: Sequence[Row], of_policies: Sequence[Row], file: Path) -> None:
    """Capacities over Block's with their intervals, a panel for each setting; needs matplotlib."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - nothing else here needs it

    plt.rcParams.update({"svg.hashsalt": file.stem, "svg.fonttype": "none", "font.size": 8})
    figure, panels = plt.subplots(1, len(SETTINGS), figsize=(11, 2.6), sharex=True)
    every = [*_as_servers(of_policies), *rows]
    for axes, setting in zip(panels, SETTINGS, strict=True):
        mine = [row for row in every if row["setting"] == setting.name]
        titles = [t for t in dict.fromkeys(row["server"] for row in mine) if t != BLOCK]
        for place, title in enumerate(titles):
            ratios = _ratios(_of(mine, title), _of(mine, BLOCK), "capacity_qps")
            mean, half = interval([log(ratio) for ratio in ratios])
            low, middle, high = (100 * (exp(x) - 1) for x in (mean - half, mean, mean + half))
            colour = "black" if any(title == server.title for server in SEARCHED) else "tab:blue"
            axes.plot((low, high), (place, place), color=colour, linewidth=1)
            axes.plot(middle, place, "o", color=colour, markersize=4)
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(titles)), titles)
        axes.invert_yaxis()
        axes.set_title(setting.name, loc="left")
        axes.set_xlabel("capacity over Block's, %")
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
