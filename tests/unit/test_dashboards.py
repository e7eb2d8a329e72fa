"""Dashboards, alerts and runbook are current, and use only metrics that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretell.tools.observability.catalogue import catalogue
from foretell.tools.observability.panels import DASHBOARDS, Dashboard, metrics_of
from tests.alerts import ALERTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "observability"
PANELS = [(page, panel) for page in DASHBOARDS for panel in page.panels]


def test_the_files_are_what_the_generator_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="comes with `make setup-dev`")
    from foretell.tools.observability.dashboards import files  # noqa: PLC0415

    made = files()
    for path, content in made.items():
        assert (FOLDER / path).read_text() == content, "run: make dashboards"
    kept = {f"dashboards/{path.name}" for path in (FOLDER / "dashboards").iterdir()}
    assert kept == {path for path in made if path.startswith("dashboards/")}


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda page: page.uid)
def test_grafanas_own_types_read_back_all_that_is_written(page: Dashboard) -> None:
    """Reads by the schema of `grafana-foundation-sdk`, which drops fields that it does not know."""
    pytest.importorskip("grafana_foundation_sdk", reason="comes with `make setup-dev`")
    from grafana_foundation_sdk.cog import plugins  # noqa: PLC0415
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415
    from grafana_foundation_sdk.models import dashboard  # noqa: PLC0415

    plugins.register_default_plugins()
    written = json.loads((FOLDER / "dashboards" / f"{page.uid}.json").read_text())
    read = json.loads(JSONEncoder().encode(dashboard.Dashboard.from_json(written)))
    assert not list(_lost(written, read))
    written["panels"][0]["colour"] = written["panels"][0]["targets"][0]["query"] = "unknown"
    read = json.loads(JSONEncoder().encode(dashboard.Dashboard.from_json(written)))
    assert set(_lost(written, read)) == {"/panels/0/colour", "/panels/0/targets/0/query"}


def _lost(written: Any, read: Any, where: str = "") -> Iterator[str]:
    """Yield where a field of `written` differs in `read`, or is missing there."""
    if isinstance(written, dict) and isinstance(read, dict):
        for name, value in written.items():
            yield from _lost(value, read.get(name), f"{where}/{name}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for index, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from _lost(one, other, f"{where}/{index}")
    elif written != read:
        yield where


def test_every_metric_that_a_panel_or_an_alert_names_is_in_the_catalogue() -> None:
    queries = [query for _, panel in PANELS for query, _ in panel.queries]
    named = set().union(*map(metrics_of, [*queries, *(alert.expression for alert in ALERTS)]))
    assert len(named) > 20
    assert {name for name in named if not name.startswith("vllm:")} <= set(catalogue())


def test_labels_that_are_selected_or_grouped_by_exist() -> None:
    known = {label for metric in catalogue().values() for label in metric.labels}
    scraped = {"le", "job", "instance", "finished_reason"}
    for _, panel in PANELS:
        for query, legend in panel.queries:
            by = re.findall(r"by \(([^)]*)\)", query)
            named = {label.strip() for group in by for label in group.split(",")}
            named |= set(re.findall(r"[{,]\s*(\w+)\s*=", query))
            named |= set(re.findall(r"{{(\w+)}}", legend))
            assert named <= known | scraped, (panel.title, named)


def test_every_alert_has_a_section_of_the_runbook_and_no_other_is_there() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [alert.name for alert in ALERTS]
    for alert in ALERTS:
        assert alert.runbook_url == f"docs/runbook.md#{alert.name.lower()}"
