"""The panels of the dashboards, which `panels.yaml` lists, and the PromQL that they share."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

WINDOW = "$__rate_interval"
"""Grafana's variable for the shortest window that holds enough scrapes."""
VARIABLES = {
    "namespace": "namespace",
    "model_name": "model",
    "instance_id": "instance",
    "tenant": "tenant",
}
"""The variable of a dashboard that chooses among the values of each label."""
CHOOSES_FROM = {
    "namespace": "foretell_build_info",
    "model_name": "foretell_requests_total",
    "instance_id": "foretell_instance_healthy",
    "tenant": "foretell_tenant_tokens_total",
}
"""For each label, the metric whose values of it the variable offers."""
ANNOTATIONS = (
    (
        "Start of a process",
        "blue",
        "sum by (job, version) (foretell_build_info unless foretell_build_info offset 1m)",
    ),
    ("Scaling", "orange", f"max(changes(foretell_desired_replicas[{WINDOW}])) > 0"),
)
"""Moments that all dashboards mark: title, colour and PromQL that has a value at them."""
_NAME = re.compile(r"\b(?:foretell_|process_|vllm:)\w+")
_SELECTED = re.compile(rf"({_NAME.pattern})(\{{([^}}]*)\}})?")
_PARTS = re.compile(r"_(bucket|count|sum)$")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: a line for each series that a query gives."""

    title: str
    unit: str
    """Grafana's name of the unit: reqps, s, percentunit, short."""
    meaning: str
    queries: tuple[tuple[str, str], ...]
    """PromQL, and the legend of its series."""
    threshold: float | None = None
    """A line in the panel; values beyond it need attention."""
    heat: bool = False
    """Whether it is a heatmap of a histogram's buckets."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page of Grafana."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def _panel(row: dict[str, Any]) -> Panel:
    about = (row["title"], row["unit"], row["meaning"])
    if "heatmap" in row:
        query = f"sum by (le) (rate({row['heatmap']}_bucket[{WINDOW}]))"
        return Panel(*about, ((query, "{{le}}"),), heat=True)
    if "quantiles" in row:
        return Panel(*about, tuple(_quantiles(**row["quantiles"])))
    queries = tuple((query, legend) for legend, query in row["queries"].items())
    return Panel(*about, queries, row.get("threshold"))


def _quantiles(of: str, levels: list[float], by: str = "") -> list[tuple[str, str]]:
    """Quantiles of a histogram, over all its series or by one label."""
    buckets = f"sum by (le{f', {by}' if by else ''}) (rate({of}_bucket[{WINDOW}]))"
    legend = f"{{{{{by}}}}} " if by else ""
    return [(f"histogram_quantile({at}, {buckets})", f"{legend}P{100 * at:g}") for at in levels]


def metrics_of(expression: str) -> set[str]:
    """The metrics that PromQL names, parts of histograms by their histogram."""
    return {_PARTS.sub("", name) for name in _NAME.findall(expression)}


def scoped(query: str, labels_of: Callable[[str], Collection[str]]) -> str:
    """The query, restricted to the series that the variables of a dashboard choose.

    `labels_of` returns the labels of a metric by its name. "All" chooses also series that lack the
    label, such as the namespace outside Kubernetes.
    """

    def choose(found: re.Match[str]) -> str:
        name, _, given = found.groups()
        labels = {"namespace", *labels_of(_PARTS.sub("", name))}
        chosen = [f'{of}=~"${variable}"' for of, variable in VARIABLES.items() if of in labels]
        return f"{name}{{{', '.join(filter(None, [given, *chosen]))}}}"

    return _SELECTED.sub(choose, query)


DASHBOARDS = tuple(
    Dashboard(page["uid"], page["title"], tuple(map(_panel, page["panels"])))
    for page in yaml.safe_load(Path(__file__).with_name("panels.yaml").read_text(encoding="utf-8"))
)
