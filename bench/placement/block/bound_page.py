"""What is told of the bound on placement: tables and a picture."""

from collections.abc import Iterable, Sequence
from math import log
from pathlib import Path
from statistics import fmean

from bench.placement.block.beyond import SETTINGS
from bench.placement.block.bound_runs import (
    BLOCK_LARGEST,
    BUSY,
    BUSY_RATE,
    BUSY_RATE_WINDOWS,
    BUSY_SEEDS,
    BUSY_SETTINGS,
    CONVEX,
    PACKED,
    POOLED,
    Row,
)
from bench.report import Blocks, Numbers, made_by, markdown_table
from bench.stats import change, geometric_mean, plus_minus, ratio_interval

BLOCK = "Block"


def blocks(page: Numbers, of_policies: Sequence[Row]) -> Blocks:
    """The blocks of the page; `of_policies` are the rows of `beyond_block`."""
    rows = [*as_servers(of_policies), *page["rows"]]
    ours = dict.fromkeys(row["scheduler"] for row in of_policies)
    busy = (
        f"{BUSY_RATE:g} times Block's mean capacity ({BUSY_RATE_WINDOWS:g} times with Azure's "
        f"rhythm), {BUSY_SETTINGS[0].requests} requests, {len(BUSY_SEEDS)} seeds; counted between "
        "the first tokens of 40% and of 90% of all requests, when engines are full and others "
        "wait. Here `late_binding` holds requests as long as it takes, not 10 s. *Computed again*: "
        "tokens, of all that steps computed.\n"
    )
    return {
        "made": made_by(page),
        "short": _short(rows, [title for title in ours if title != BLOCK], page["packed"]),
        "capacities": "\n".join(_capacities(rows)),
        "busy": "\n".join([busy, *_busy(page["busy"])]),
    }


def as_servers(of_policies: Iterable[Row]) -> list[Row]:
    """The rows of policies, as those of servers."""
    return [{**row, "server": row["scheduler"]} for row in of_policies]


def _short(rows: Sequence[Row], ours: Sequence[str], packed: Sequence[Row]) -> str:
    """Block's, our best and the pools', a row for each setting."""
    table = []
    for setting in SETTINGS:
        mine = [row for row in rows if row["setting"] == setting.name]
        block, pool = of(mine, BLOCK), of(mine, CONVEX.title)
        best = best_of(ours, mine)
        full = [row["requests_per_s"] for row in packed if row["setting"] == setting.name]
        table.append(
            (
                setting.name,
                f"{fmean(row['capacity_qps'] for row in block):.1f}",
                f"{fmean(full):.1f}" if full else "",
                *(_gain(of(mine, title), block) for title in (POOLED.title, CONVEX.title)),
                share(block, pool),
                f"{share(of(mine, best), pool)} ({best})",
                _gain(of(mine, BLOCK_LARGEST.title), block),
            )
        )
    header = ("setting", "Block's capacity", PACKED, "pool over Block", "convex pool over Block")
    shares = ("Block has of that", "our best has", f"{BLOCK_LARGEST.title}, over Block")
    return markdown_table((*header, *shares), table)


def best_of(titles: Iterable[str], rows: Sequence[Row]) -> str:
    """The one with the most capacity."""
    return max(
        (title for title in titles if of(rows, title)),
        key=lambda title: float(fmean(log(row["capacity_qps"]) for row in of(rows, title))),
    )


def share(mine: Sequence[Row], pool: Sequence[Row]) -> str:
    """The share of the pool's capacity; geometric mean over the seeds."""
    return f"{geometric_mean(ratios(mine, pool, 'capacity_qps')):.1%}"


def _gain(mine: Sequence[Row], block: Sequence[Row]) -> str:
    if not mine:
        return ""
    return f"{geometric_mean(ratios(mine, block, 'capacity_qps')) - 1:+.1%}"


def _capacities(rows: Sequence[Row]) -> Iterable[str]:
    for setting in SETTINGS:
        mine = [row for row in rows if row["setting"] == setting.name]
        header = (setting.name, "capacity", "change", "P99 TTFT", "change", "mean TTFT")
        e2e = ("mean e2e", "P99 e2e", "preemptions per 1,000")
        titles = dict.fromkeys(str(row["server"]) for row in mine)
        yield markdown_table((*header, *e2e), [_capacity_row(title, mine) for title in titles])


def _capacity_row(title: str, rows: Sequence[Row]) -> tuple[str, ...]:
    mine, block = of(rows, title), of(rows, BLOCK)
    capacity = plus_minus([row["capacity_qps"] for row in mine], 1)
    names = ("ttft_p99_s", "ttft_mean_s", "e2e_mean_s", "e2e_p99_s")
    p99, *others = (f"{fmean(row[name] for row in mine):.2f} s" for name in names)
    changes = [change(ratios(mine, block, name)) for name in ("capacity_qps", "ttft_p99_s")]
    if title == BLOCK:
        changes = ["", ""]
    preempted = fmean(row["preemptions_per_1000"] for row in mine)
    return (
        *(title, capacity, changes[0], p99, changes[1], *others),
        f"{preempted:.0f}",
    )


def _busy(rows: Sequence[Row]) -> Iterable[str]:
    for setting in BUSY_SETTINGS:
        mine = [row for row in rows if row["setting"] == setting.name]
        header = (setting.name, "output tokens a second", "change", "requests a second")
        titles = (PACKED, *(server.title for server in BUSY))
        table = [_busy_row(title, mine) for title in titles]
        yield markdown_table((*header, "computed again", "preemptions per 1,000"), table)


def _busy_row(title: str, rows: Sequence[Row]) -> tuple[str, ...]:
    mine, block = of(rows, title), of(rows, BLOCK)
    tokens, requests = (fmean(r[name] for r in mine) for name in ("tokens_per_s", "requests_per_s"))
    changed = "" if title == BLOCK else change(ratios(mine, block, "tokens_per_s"))
    again = preempted = ""
    if title != PACKED:
        again = f"{fmean(row['recomputed'] for row in mine):.1%}"
        preempted = f"{fmean(row['preemptions_per_1000'] for row in mine):.0f}"
    return title, f"{tokens:,.0f}", changed, f"{requests:.1f}", again, preempted


def of(rows: Iterable[Row], title: str) -> list[Row]:
    """A server's rows, by seed."""
    return sorted((r for r in rows if r["server"] == title), key=lambda r: int(r["seed"]))


def ratios(mine: Sequence[Row], block: Sequence[Row], name: str) -> list[float]:
    """Seed by seed."""
    return [own[name] / theirs[name] for own, theirs in zip(mine, block, strict=True)]


def draw(rows: Sequence[Row], file: Path) -> None:
    """Capacities over Block's with their intervals, a panel for each setting; needs matplotlib."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - nothing else here needs it

    plt.rcParams.update({"svg.hashsalt": file.stem, "svg.fonttype": "none", "font.size": 8})
    titles = [
        title for title in dict.fromkeys(str(row["server"]) for row in rows) if title != BLOCK
    ]
    shown = [title for title in titles if "memory" not in title]  # far off to the right
    figure, panels = plt.subplots(1, len(SETTINGS), figsize=(12, 2.6), sharey=True)
    for axes, setting in zip(panels, SETTINGS, strict=True):
        mine = [row for row in rows if row["setting"] == setting.name]
        for place, title in enumerate(shown):
            if of(mine, title):
                gains = ratios(of(mine, title), of(mine, BLOCK), "capacity_qps")
                middle, low, high = (100 * (x - 1) for x in ratio_interval(gains))
                axes.plot((low, high), (place, place), color="black", linewidth=1)
                axes.plot(middle, place, "o", color="black", markersize=4)
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_title(setting.name, loc="left")
        axes.set_xlabel("capacity over Block's, %")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(shown)), shown)
    panels[0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
