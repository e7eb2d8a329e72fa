"""Writes the dashboards that Grafana imports; `make dashboards` runs it.

The dashboards are made by Grafana's own library, which knows the schema.
"""

from pathlib import Path
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import common, heatmap, prometheus, timeseries
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import GraphThresholdsStyleMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from foretell.tools.observability.catalogue import catalogue, labels_of
from foretell.tools.observability.panels import (
    ANNOTATIONS,
    CHOOSES_FROM,
    DASHBOARDS,
    VARIABLES,
    Dashboard,
    Panel,
    metrics_of,
    scoped,
)

COLOURS = (
    heatmap.HeatmapColorOptions()
    .mode(HeatmapColorMode.SCHEME)
    .scheme("Turbo")
    .fill("dark-blue")
    .exponent(0.5)
    .steps(64)
)
FOLDER = "deploy/observability"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HALF_OF_WIDTH, _HEIGHT = 12, 8


def files() -> dict[str, str]:
    """The files to import into Grafana, by their paths in `FOLDER`."""
    return {f"dashboards/{each.uid}.json": _grafana(each) for each in DASHBOARDS}


def _grafana(page: Dashboard) -> str:
    builder = (
        dashboards.Dashboard(f"Foretell: {page.title}")
        .uid(page.uid)
        .tags(["foretell"])
        .refresh("10s")
        .time("now-30m", "now")
        .with_variable(dashboards.DatasourceVariable("datasource").type("prometheus"))
        .link(
            dashboards.DashboardLink("Foretell")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["foretell"])
            .as_dropdown(as_dropdown=True)
            .keep_time(keep_time=True)
            .include_vars(include_vars=True)
        )
    )
    for label, variable in VARIABLES.items():
        builder = builder.with_variable(_variable(label, variable))
    for title, colour, query in ANNOTATIONS:
        builder = builder.annotation(
            dashboards.AnnotationQuery()
            .name(title)
            .datasource(_SOURCE)
            .enable(enable=True)
            .icon_color(colour)
            .expr(scoped(query, labels_of))
        )
    for number, panel in enumerate(page.panels, 1):
        builder = builder.with_panel(_panel(panel).id(number))
    return JSONEncoder(sort_keys=True, indent=1).encode(builder.build()) + "\n"


def _variable(label: str, variable: str) -> dashboards.QueryVariable:
    return (
        dashboards.QueryVariable(variable)
        .label(variable)
        .query(f"label_values({CHOOSES_FROM[label]}, {label})")
        .datasource(_SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
        .current(VariableOption(text="All", value="$__all"))
    )


def _panel(panel: Panel) -> timeseries.Panel | heatmap.Panel:
    """Build a panel. Its description explains its metrics by the catalogue."""
    known = catalogue()
    named = sorted({name for query, _ in panel.queries for name in metrics_of(query)})
    meanings = "\n".join(f"- `{n}`: {known[n].meaning}" for n in named if n in known)
    built: Any = heatmap.Panel() if panel.heat else timeseries.Panel()
    if panel.heat:
        axis = heatmap.YAxisConfig().unit(panel.unit)
        built = built.y_axis(axis).color(COLOURS)
    elif panel.threshold is not None:
        steps = [Threshold(color="green"), Threshold(value=panel.threshold, color="red")]
        built = built.thresholds(
            dashboards.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
        ).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        )
    built = (
        built.title(panel.title)
        .description(f"{panel.meaning}\n\n{meanings}".strip())
        .unit(panel.unit)
        .datasource(_SOURCE)
        .span(_HALF_OF_WIDTH)
        .height(_HEIGHT)
    )
    for name, (query, legend) in zip(ascii_uppercase, panel.queries, strict=False):
        target = prometheus.Dataquery().ref_id(name).expr(scoped(query, labels_of))
        target = target.legend_format(legend)
        built = built.with_target(target.format(PromQueryFormat.HEATMAP) if panel.heat else target)
    found: timeseries.Panel | heatmap.Panel = built
    return found


def write(folder: Path) -> None:
    """Write all files, and remove dashboards that no longer exist."""
    for old in (folder / "dashboards").glob("*.json"):
        old.unlink()
    for path, content in files().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


if __name__ == "__main__":
    write(Path(FOLDER))
