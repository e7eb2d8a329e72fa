"""Writes what Grafana and Prometheus import; `make dashboards` runs it.

The dashboards are made by Grafana's own library, which knows the schema.
"""

from pathlib import Path
from string import ascii_uppercase

import yaml
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from foretell.tools.observability.alerts import rules
from foretell.tools.observability.catalogue import catalogue
from foretell.tools.observability.panel import Dashboard, Panel, metrics_of
from foretell.tools.observability.panels import DASHBOARDS

FOLDER = "deploy/observability"
_HEADER = "# Made by `make dashboards` of tools/observability.\n"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HALF_OF_WIDTH, _HEIGHT = 12, 8


def files() -> dict[str, str]:
    """What is to be imported, by its path in `FOLDER`."""
    found = {f"dashboards/{each.uid}.json": _grafana(each) for each in DASHBOARDS}
    found["rules.yml"] = _HEADER + _yaml(rules())
    return found


def _grafana(page: Dashboard) -> str:
    builder = (
        dashboards.Dashboard(f"Foretell: {page.title}")
        .uid(page.uid)
        .tags(["foretell"])
        .refresh("10s")
        .time("now-30m", "now")
        .with_variable(dashboards.DatasourceVariable("datasource").type("prometheus"))
    )
    for number, panel in enumerate(page.panels, 1):
        builder = builder.with_panel(_panel(panel).id(number))
    return JSONEncoder(sort_keys=True, indent=1).encode(builder.build()) + "\n"


def _panel(panel: Panel) -> timeseries.Panel:
    """With what its metrics mean in its description, as the catalogue has it."""
    known = catalogue()
    named = sorted({name for query, _ in panel.queries for name in metrics_of(query)})
    meanings = "\n".join(f"- `{name}`: {known[name].meaning}" for name in named)
    built = (
        timeseries.Panel()
        .title(panel.title)
        .description(f"{panel.meaning}\n\n{meanings}")
        .unit(panel.unit)
        .datasource(_SOURCE)
        .span(_HALF_OF_WIDTH)
        .height(_HEIGHT)
    )
    for name, (query, legend) in zip(ascii_uppercase, panel.queries, strict=False):
        target = prometheus.Dataquery().ref_id(name).expr(query).legend_format(legend)
        built = built.with_target(target)
    return built


def _yaml(content: object) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=100)


def write(folder: Path) -> None:
    """Write all files, and nothing else: what is no longer made goes."""
    for old in (folder / "dashboards").glob("*.json"):
        old.unlink()
    for path, content in files().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


if __name__ == "__main__":
    write(Path(FOLDER))
