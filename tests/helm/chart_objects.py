"""The chart's objects for each set of values in the folder `values`."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

helm = pytest.importorskip("helm_python", reason="make test-helm installs Helm's library")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="as make test-helm does")
jsonschema = pytest.importorskip("jsonschema")

from foretell.tools.chart.rendered import CHART  # noqa: E402

# Cached, since it would read megabytes again for each object.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)

HERE = Path(__file__).parent
SETS = sorted(path.stem for path in (HERE / "values").glob("*.yaml"))
CUSTOM = {tuple(path.stem.partition(".")[::2]): path for path in (HERE / "crds").glob("*.json")}
Object = dict[str, Any]

each_set = pytest.mark.parametrize("name", SETS)


def render(values: Object) -> dict[str, str]:
    """Helm's output for `values`, by template path."""
    with helm.Chart.load(CHART.resolve()) as chart:
        chart.validate_schema(values)
        found: dict[str, str] = chart.render(values, name="demo", namespace="llm")
        return found


def parsed(rendered: dict[str, str]) -> list[Object]:
    texts = (text for path, text in rendered.items() if path.endswith(".yaml"))
    return [each for text in texts for each in yaml.load_all(text, _Strict) if each]


def values_of(name: str) -> Object:
    return yaml.safe_load((HERE / "values" / f"{name}.yaml").read_text()) or {}


@cache
def objects(name: str) -> list[Object]:
    return parsed(render(values_of(name)))


class _Strict(yaml.SafeLoader):
    """Refuses duplicate keys, as API servers do."""


def _mapping(loader: Any, node: Any) -> Object:
    pairs = loader.construct_pairs(node, deep=True)
    assert len(dict(pairs)) == len(pairs), f"a key stands twice: {[key for key, _ in pairs]}"
    return dict(pairs)


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def of_kind(name: str, *kinds: str) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in objects(name) if each["kind"] in kinds}


def pods_of(name: str) -> dict[str, Object]:
    """The pod templates of all workloads, by workload name."""
    found = of_kind(name, "StatefulSet", "Deployment")
    pods = {key: each["spec"]["template"] for key, each in found.items()}
    for key, each in of_kind(name, "LeaderWorkerSet").items():
        of = each["spec"]["leaderWorkerTemplate"]
        pods |= {key: of["leaderTemplate"], f"{key}-worker": of["workerTemplate"]}
    return pods | of_kind(name, "Pod")


def containers(pod: Object) -> list[Object]:
    spec = pod["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def container_of(pod: Object, name: str) -> Object:
    (found,) = (each for each in containers(pod) if each["name"] == name)
    return found


def cluster_file(name: str, folder: Path) -> Path:
    file = folder / "cluster.yaml"
    file.write_text(of_kind(name, "ConfigMap")["demo-foretell-cluster"]["data"]["cluster.yaml"])
    return file


def env_of(container: Object, pod: str = "", index: str = "0") -> dict[str, str]:
    """A container's variables as Kubernetes sets them, with names in place of Secrets."""
    found: dict[str, str] = {}
    for each in container.get("env", []):
        source = each.get("valueFrom", {})
        path = source.get("fieldRef", {}).get("fieldPath", "")
        secret = source.get("secretKeyRef", {}).get("name", "")
        known = {"metadata.name": pod}.get(path, index if path else secret)
        value = each.get("value", known)
        for name, earlier in found.items():
            value = value.replace(f"$({name})", earlier)
        found[each["name"]] = value
    return found


def engines_of(name: str) -> dict[str, Object]:
    found = of_kind(name, "StatefulSet", "LeaderWorkerSet")
    component = "app.kubernetes.io/component"
    return {
        key: each
        for key, each in found.items()
        if each["metadata"]["labels"][component] == "engine"
    }
