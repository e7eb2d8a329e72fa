"""What a panel is, and the PromQL that many of them share."""

import re
from dataclasses import dataclass

WINDOW = "$__rate_interval"
"""Grafana's variable for the shortest window that holds enough scrapes."""


_NAME = re.compile(r"\bforetell_\w+")
_PARTS = re.compile(r"_(bucket|count|sum)$")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: a line for each series that a query gives."""

    title: str
    unit: str
    """Grafana's name of it: reqps, s, percentunit, short."""
    meaning: str
    queries: tuple[tuple[str, str], ...]
    """PromQL, and the legend of its series."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page of Grafana."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def metrics_of(expression: str) -> set[str]:
    """The metrics that PromQL names, parts of histograms by their histogram."""
    return {_PARTS.sub("", name) for name in _NAME.findall(expression)}


def rate(metric: str, by: str = "", where: str = "") -> str:
    """A counter's growth a second, over all its series or by one label."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{where}[{WINDOW}]))"


def quantiles(
    metric: str, by: str = "", levels: tuple[float, ...] = (0.5, 0.99)
) -> tuple[tuple[str, str], ...]:
    """Quantiles of a histogram, over all its series or by one label."""
    grouped = rate(f"{metric}_bucket", f"le, {by}" if by else "le")
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        (f"histogram_quantile({level}, {grouped})", f"{legend}P{100 * level:g}") for level in levels
    )


def at(bound: float) -> str:
    """Selects the bucket of a histogram with that upper bound."""
    return f"{{le='{bound:g}'}}"


def gauge(metric: str, legend: str = "{{instance_id}}") -> tuple[tuple[str, str], ...]:
    """Replicas tell the same of an instance, each as it knows it: the largest counts."""
    return ((f"max by (instance_id) ({metric})", legend),)
