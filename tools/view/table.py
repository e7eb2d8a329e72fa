"""The table of a running cluster, for terminals of 80 columns and more."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich import box
from rich.markup import escape
from rich.table import Table

from foretell.tools.view.cluster import (
    ClusterView,
    EngineView,
    median_error,
    medians,
    ttft_quantile,
)

WIDE_COLUMNS, WIDEST_COLUMNS = 110, 180
"""Widths of a terminal from which on the table has more columns."""

States = Mapping[str, str]
"""States of engines' processes, by engine, from a supervisor, which knows more than schedulers."""
_COLOURS = {"up": "green", "ready": "green", "down": "red", "dead": "red"}


class _Column(NamedTuple):
    title: str
    cell: Callable[[EngineView, ClusterView], str]
    width: int = 0
    """The least width of a terminal that shows it."""
    text: bool = False


def _known(text: str, *values: object) -> str:
    """The text, with these values in it; empty if one of them is None."""
    return "" if None in values else text.format(*values)


def _of_both(predicted: Sequence[float], actual: Sequence[float]) -> str:
    found = medians(predicted, actual)
    return pair(*found) if found else ""


def _ttft(engines: Sequence[EngineView]) -> str:
    middle, tail = ttft_quantile(engines, 0.5), ttft_quantile(engines, 0.99)
    return "" if middle is None or tail is None else pair(middle, tail)


_COLUMNS = (
    _Column("running\n+ waiting", lambda e, _: _known("{} + {}", e.running, e.waiting)),
    _Column("KV", lambda e, _: _known("{:.0%}", e.kv_used_ratio)),
    _Column("TTFT\np50 / p99", lambda e, _: _ttft([e])),
    _Column("e2e predicted\n/ actual", lambda e, _: _of_both(e.predicted_e2e_s, e.e2e_s)),
    _Column(
        "off\nby",
        lambda e, _: _known("{:.0%}", median_error(e.predicted_e2e_s, e.e2e_s)),
        WIDE_COLUMNS,
    ),
    _Column(
        "TTFT predicted\n/ actual",
        lambda e, _: _of_both(e.predicted_ttft_s, e.ttft_s),
        WIDE_COLUMNS,
    ),
    _Column("share", lambda e, view: f"{e.placed / view.placed:.0%}" if view.placed else ""),
    _Column("placed", lambda e, _: f"{e.placed:,}", WIDE_COLUMNS),
    _Column("in progress", lambda e, _: f"{e.outstanding:,}", WIDEST_COLUMNS),
    _Column("steps\nlearned", lambda e, _: _known("{:,}", e.calibration_steps)),
    _Column("models", lambda e, _: ", ".join(sorted(e.models)), WIDEST_COLUMNS, text=True),
    _Column("address", lambda e, _: e.url, WIDEST_COLUMNS, text=True),
)


def table(
    view: ClusterView,
    width: int,
    *,
    title: str = "",
    notes: Sequence[str] = (),
    states: States | None = None,
) -> Table:
    """A row for each engine, for a terminal of `width` columns.

    `states` has the engines of a local cluster, including those that no scheduler knows yet.
    """
    states = states or {}
    names = list(dict.fromkeys([*states, *view.engines]))
    found = Table(
        title=title or None,
        title_justify="left",
        caption="\n".join([_summary(view), *_unpredicted(view), *notes]),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    found.add_column("engine", no_wrap=True)
    found.add_column("state", no_wrap=True)
    columns = [column for column in _COLUMNS if width >= column.width]
    for column in columns:
        found.add_column(column.title, justify="left" if column.text else "right", no_wrap=True)
    for name in names:
        engine = view.engines.get(name, EngineView(name))
        cells = [column.cell(engine, view) for column in columns]
        found.add_row(name, _state(engine, states.get(name, "")), *cells)
    return found


def _state(engine: EngineView, process: str) -> str:
    """The process's state if it is not ready, otherwise whether schedulers can use the engine."""
    state = process if process not in ("", "ready") else "up" if engine.up else "down"
    return f"[{_COLOURS.get(state, 'yellow')}]{state}[/]"


def _unpredicted(view: ClusterView) -> list[str]:
    """The engines that are not predicted, or not exactly, in one line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, engine in view.engines.items():
        if engine.unpredicted:
            reasons.setdefault(f"not predicted: {engine.unpredicted}", []).append(name)
        elif engine.approximations:
            features = ", ".join(engine.approximations)
            reasons.setdefault(f"not modelled: {features}", []).append(name)
    return [escape(f"{', '.join(each)}: {why}") for why, each in reasons.items()]


def _summary(view: ClusterView) -> str:
    """The whole cluster in a line."""
    engines = list(view.engines.values())
    count = len(view.replicas)
    schedulers = f"{count} scheduler{'s' if count != 1 else ''}"
    if len(view.versions) > 1:
        schedulers += f" of releases {' and '.join(sorted(view.versions))}"
    parts = [
        f"{schedulers}, {', '.join(sorted(view.policies)) or '?'}",
        f"{view.requests:,} requests, {view.in_progress:,} in progress",
    ]
    if ttft := _ttft(engines):
        parts.append(f"TTFT {ttft}")
    off = median_error(
        [each for engine in engines for each in engine.predicted_e2e_s],
        [each for engine in engines for each in engine.e2e_s],
    )
    if off is not None:
        parts.append(f"e2e off by {off:.0%} (median)")
    return "; ".join(parts) + ". Latencies are those of the last minute."


def pair(one: float, other: float) -> str:
    """Two times in seconds with three digits at most, and one unit for both."""
    if max(one, other) < 0.9995:
        return f"{1e3 * one:.0f} / {1e3 * other:.0f} ms"
    return f"{_digits(one)} / {_digits(other)} s"


def _digits(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 9.995 else f"{seconds:.0f}"
