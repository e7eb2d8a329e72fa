"""What a panel is, and the PromQL that many of them share."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

WINDOW = "$__rate_interval"
"""Grafana's variable for the shortest window that holds enough scrapes."""


VARIABLES = {
    "namespace": "namespace",
    "model_name": "model",
    "instance_id": "instance",
    "tenant": "tenant",
}
"""The variable of a dashboard that chooses among the values of each label."""
_NAME = re.compile(r"\b(?:foretell_|process_|vllm:)\w+")
_SELECTED = re.compile(rf"({_NAME.pattern})(\{{([^}}]*)\}})?")
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
    threshold: float | None = None
    """A line: beyond it somebody should look."""
    heat: bool = False
    """A heatmap, of the buckets of a histogram."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page of Grafana."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def metrics_of(expression: str) -> set[str]:
    """The metrics that PromQL names, parts of histograms by their histogram."""
    return {_PARTS.sub("", name) for name in _NAME.findall(expression)}


def scoped(query: str, labels_of: Callable[[str], Collection[str]]) -> str:
    """A query of those series that the variables of a dashboard choose.

    `labels_of` tells the labels of a metric by its name. A label that a series lacks, as that of
    the namespace outside of Kubernetes, is chosen by "All".
    """

    def choose(found: re.Match[str]) -> str:
        name, _, given = found.groups()
        labels = {"namespace", *labels_of(_PARTS.sub("", name))}
        chosen = [f'{of}=~"${variable}"' for of, variable in VARIABLES.items() if of in labels]
        return f"{name}{{{', '.join(filter(None, [given, *chosen]))}}}"

    return _SELECTED.sub(choose, query)


def heatmap(metric: str) -> tuple[tuple[str, str], ...]:
    """The buckets of a histogram, over all its series."""
    return ((rate(f"{metric}_bucket", "le"), "{{le}}"),)


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
