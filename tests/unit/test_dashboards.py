"""Dashboards, alerts and runbook: current, and of metrics that exist."""

import re
from pathlib import Path

import pytest
import yaml

from tools.observability.alerts import ALERTS, rules
from tools.observability.catalogue import catalogue
from tools.observability.panels import DASHBOARDS, metrics_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "observability"
PANELS = [(page, panel) for page in DASHBOARDS for panel in page.panels]


def test_the_files_are_what_the_generator_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="comes with `make setup-dev`")
    from tools.observability.dashboards import files  # noqa: PLC0415

    made = files()
    for path, content in made.items():
        assert (FOLDER / path).read_text() == content, "run: make dashboards"
    kept = {f"dashboards/{path.name}" for path in (FOLDER / "dashboards").iterdir()}
    assert kept == {path for path in made if path.startswith("dashboards/")}


def test_every_metric_that_a_panel_or_an_alert_names_is_in_the_catalogue() -> None:
    queries = [query for _, panel in PANELS for query, _ in panel.queries]
    named = set().union(*map(metrics_of, [*queries, *(alert.expression for alert in ALERTS)]))
    assert len(named) > 20
    assert named <= set(catalogue())


def test_labels_that_are_selected_or_grouped_by_exist() -> None:
    known = {label for metric in catalogue().values() for label in metric.labels}
    scraped = {"le", "job", "instance"}
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


def test_kubernetes_gets_the_same_alerts() -> None:
    resources = list(yaml.safe_load_all((FOLDER / "kubernetes.yml").read_text()))
    kinds = [resource["kind"] for resource in resources]
    assert kinds == ["ServiceMonitor"] * 3 + ["PrometheusRule"]
    assert resources[-1]["spec"] == rules()
