"""The Helm chart: API servers accept what Helm renders; wrong values are refused."""

import json
from typing import Any

import pytest
import yaml
from chart_objects import (
    CHART,
    CUSTOM,
    SETS,
    Object,
    each_set,
    helm,
    jsonschema,
    kubernetes_validate,
    objects,
    of_kind,
)

from foretell import __version__
from foretell.tools.chart.values import schema

KUBERNETES = ("1.30.0", "1.33.0", "1.37.0")


@each_set
def test_what_is_rendered_is_valid_on_three_versions(name: str) -> None:
    for each in objects(name):
        where = f"{name}: {each['kind']} {each['metadata']['name']}"
        kind = each["kind"], each["apiVersion"].replace("/", ".")
        if kind in CUSTOM:
            continue
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except jsonschema.ValidationError as error:
                pytest.fail(f"{where}, {version}: {list(error.path)}: {error.message}")


@each_set
def test_pods_in_custom_resources_are_valid(name: str) -> None:
    for each in of_kind(name, "LeaderWorkerSet").values():
        of = each["spec"]["leaderWorkerTemplate"]
        for template in (of["leaderTemplate"], of["workerTemplate"]):
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
            for version in KUBERNETES:
                kubernetes_validate.validate(
                    {**pod, "metadata": {"name": "x"}}, version, strict=True
                )


@each_set
def test_custom_resources_are_as_their_definitions_say(name: str) -> None:
    for each in objects(name):
        path = CUSTOM.get((each["kind"], each["apiVersion"].replace("/", ".")))
        if path is not None:
            jsonschema.validate(each, json.loads(path.read_text()))


def test_every_custom_resource_is_rendered_by_some_values() -> None:
    kinds = {each["kind"] for name in SETS for each in objects(name)}
    assert {kind for kind, _ in CUSTOM} <= kinds


@each_set
def test_names_are_unique_and_short_enough(name: str) -> None:
    seen = [(each["kind"], each["metadata"]["name"]) for each in objects(name)]
    assert len(set(seen)) == len(seen)
    # A StatefulSet's pods have a label of its name and eleven more characters, at most 63.
    assert all(len(each) <= 52 for _, each in seen)


def test_helm_finds_nothing_to_say_against_the_chart() -> None:
    found = helm.lint(str(CHART.resolve()))
    assert [each for each in found["messages"] if "icon" not in each["error"]] == []


def test_version_and_schema_are_current() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert (CHART / "values.schema.json").read_text() == schema(), "run make chart"


WRONG = {
    "models": ({"models": []}, "/models"),
    "replicas": ({"schedulers": {"replicas": "two"}}, "/schedulers/replicas"),
    "gpus": ({"models": [{"name": "a", "model": "m", "gpus": 0}]}, "/models/0/gpus"),
    "policy": ({"cluster": {"policy": {"nam": "slo"}}}, "nam"),
    "secret": ({"secrets": {"traffic": {"name": "A B"}}}, "/secrets/traffic/name"),
    "misspelt": ({"tagger": {"replica": 2}}, "replica"),
    "unknown": ({"model": []}, "model"),
    "kind": ({"models": [{"name": "a", "model": "m", "kind": "tgi"}]}, "/models/0/kind"),
    "name": ({"models": [{"name": "Qwen_3", "model": "m"}]}, "/models/0/name"),
    "digest": ({"image": {"digest": "latest"}}, "/image/digest"),
    "folder": ({"cluster": {"batches": {"folder": "/x"}}}, "folder"),
    "keys": ({"cluster": {"schedulers": {"api_keys_file": "/x"}}}, "api_keys_file"),
    "type": ({"schedulers": {"service": {"type": "Node"}}}, "/schedulers/service/type"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_refused_by_the_name_of_the_field(case: str) -> None:
    values, field = WRONG[case]
    with (
        helm.Chart.load(CHART.resolve()) as chart,
        pytest.raises(helm.HelmError, match=field),
    ):
        chart.validate_schema(values)


def _scaled(by: str, **more: Any) -> Object:
    scaling = {"by": by, "minimum": 1, "maximum": 2, **more}
    return {"name": "a", "model": "m", "autoscaling": scaling}


CONTRADICTIONS = {
    "twice": (
        {"models": [{"name": "a", "model": "m"}, {"name": "a", "model": "n"}]},
        "models.1.name",
    ),
    "paths": (
        {"models": [{"name": "a", "model": "m"}, {"name": "b", "model": "m", "path": "p"}]},
        "models.1.path",
    ),
    "disk": ({"batch": {"enabled": True}}, "cluster.batches.database_url"),
    "hpa": ({"models": [_scaled("hpa")]}, "models.0.autoscaling.metrics"),
    "keda": ({"models": [_scaled("keda")]}, "trafficTls.secretName"),
    "two": ({"models": [_scaled("provisioner"), {"name": "b", "model": "n"}]}, "models: "),
    "bounds": ({"models": [_scaled("provisioner", minimum=3)]}, "models.0.autoscaling.maximum"),
    "emulated": (
        {"models": [{"name": "a", "model": "m", "kind": "emulated", "nodes": 2}]},
        "models.0.nodes",
    ),
    "nodes": ({"models": [{**_scaled("provisioner"), "nodes": 2}]}, "models.0.autoscaling.by"),
    "standby": (
        {
            "models": [_scaled("keda")],
            "trafficTls": {"secretName": "a"},
            "provisioner": {"replicas": 2},
        },
        "provisioner.replicas",
    ),
    "open": (
        {
            "gateway": {"inferencePool": True},
            "secrets": {"engineApiKey": {"name": "a", "key": "b"}},
            "networkPolicies": {"enabled": False},
        },
        "networkPolicies.enabled",
    ),
    "certificates": (
        {
            "gateway": {"inferencePool": True, "pickerTlsSecretName": "a"},
            "trafficTls": {"secretName": "b"},
        },
        "gateway.pickerTlsSecretName",
    ),
    "schedulers": (
        {"models": [_scaled("provisioner")], "schedulers": {"autoscaling": {"enabled": True}}},
        "schedulers.autoscaling.enabled",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_values_that_contradict_each_other_are_refused(case: str) -> None:
    values, field = CONTRADICTIONS[case]
    with helm.Chart.load(CHART.resolve()) as chart:
        chart.validate_schema(values)
        with pytest.raises(helm.HelmError, match=field):
            chart.render(values, name="demo", namespace="llm")
