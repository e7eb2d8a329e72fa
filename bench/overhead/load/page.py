"""The tables and the picture of the load."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.report import Blocks, Numbers, made_by, markdown_table
from foretell.tools.pictures import figure, save

_GROUPS = ("scheduler", "sidecars", "tagger")
"""Those that take time from others; the length model's process does not."""
_COST = (
    *("placed by, running + waiting", "requests/s", "answered/s"),
    *("scheduler, ms", "sidecars, ms", "tagger, ms", "length model when idle, ms"),
    "placements per CPU s",
    *("added p50, ms", "added p99, ms"),
)
_QUALITY = (
    *("placed by, running + waiting", "requests/s", "failed", "blind", "length by small model"),
    *("corrected by tagger", "without all predictions", "where another just was"),
    *("picture's age p50, ms", "p99, ms"),
)
_IDLE = ("placed by, running + waiting", *(f"{group}, cores" for group in _GROUPS))

_AGES = ("p50", "p99")

Point = dict[str, Any]


def tables(numbers: Numbers) -> Blocks:
    """What placements cost, what they were made with, and what goes on without requests."""
    setup = numbers["setup"]
    text = "\n".join(
        (
            made_by(numbers),
            f"{setup['engines']} engines; medians over {setup['rounds']} round(s) of "
            f"{setup['seconds']:g} s for each row. As deployed, but for the engines.\n",
            "## CPU per placement beyond relaying\n",
            markdown_table(_COST, _rows(numbers, _cost)),
            "## What placements were made with\n",
            markdown_table(_QUALITY, _rows(numbers, _quality)),
            "## Without requests\n",
            markdown_table(_IDLE, _idle(numbers)),
        )
    )
    return {"tables": text}


def _rows(numbers: Numbers, cells: Callable[[Point], list[str]]) -> Iterator[list[str]]:
    for variant in numbers["variants"].values():
        for rate, point in variant["rates"].items():
            yield [_name(variant), rate, *cells(point)]


def _name(variant: dict[str, Any]) -> str:
    return f"{variant['title']}, {variant['size']}"


def _cost(point: Point) -> list[str]:
    total_ms = sum(point[f"{group}_beyond_ms"] for group in _GROUPS)
    return [
        f"{point['answered_per_s']:.0f}",
        *(f"{point[f'{group}_beyond_ms']:.2f}" for group in (*_GROUPS, "encoder")),
        f"{1e3 / total_ms:,.0f}" if total_ms > 0 else "",
        f"{point['first_p50_ms_beyond']:.1f}",
        f"{point['first_p99_ms_beyond']:.1f}",
    ]


def _quality(point: Point) -> list[str]:
    degraded = point["degraded"]
    fewer = sum(degraded.get(name, 0) for name in ("effort", "turn"))
    return [
        f"{point['failed']:.0f}",
        f"{point['blind_ratio']:.1%}",
        f"{point['small_model_ratio'] + point['model_ratio']:.0%}",
        f"{point['model_ratio']:.0%}",
        f"{fewer:.0f}",
        f"{point['crowded_ratio']:.0%}",
        *("" if point[f"age_{p}_ms"] is None else f"{point[f'age_{p}_ms']:.0f}" for p in _AGES),
    ]


def _idle(numbers: Numbers) -> Iterator[list[str]]:
    for variant in numbers["variants"].values():
        point = next(iter(variant["rates"].values()))
        yield [_name(variant), *(f"{point[f'{group}_idle_cores']:.3f}" for group in _GROUPS)]


def draw(numbers: Numbers, path: Path) -> None:
    """Scheduler's CPU per placement and the delay that it adds, by rate; needs matplotlib."""
    picture = figure(10.5, 4.2)
    cost, delay = picture.subplots(1, 2)
    for variant in numbers["variants"].values():
        points = {float(rate): point for rate, point in variant["rates"].items()}
        for axis, name in ((cost, "scheduler_beyond_ms"), (delay, "first_p50_ms")):
            axis.plot(
                list(points), [p[name] for p in points.values()], marker="o", label=_name(variant)
            )
    cost.set_ylabel("scheduler, ms of CPU per placement beyond relaying")
    delay.set_ylabel("first byte, p50, ms")
    delay.set_yscale("log")
    for axis in (cost, delay):
        axis.set_xlabel("requests/s")
        axis.grid(alpha=0.3)
    handles, labels = cost.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    save(picture, path)
