"""Renders the Helm chart as plain manifests, by Helm itself, so that nothing is decided twice."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from foretell.config import ClusterError

CHART = Path(__file__).parent / "shipped"
_WITHIN_S = 60.0
_NO_HELM = (
    "the chart is rendered by Helm: install the program `helm`, or `pip install helm-python-sdk`"
)
_NOT_APPLIED = ("templates/tests/", "templates/NOTES.txt")
"""Templates that `helm template` leaves out, too."""


def manifests(values: Mapping[str, Any], release: str, namespace: str) -> str:
    """All objects of the chart with these values, as YAML documents.

    Raises ClusterError with Helm's message if the values are wrong, or if there is no Helm.
    """
    try:
        import helm_python
    except ImportError:
        return _by_program(values, release, namespace)
    try:
        with helm_python.Chart.load(CHART.resolve()) as chart:
            chart.validate_schema(dict(values))
            found = chart.render(dict(values), name=release, namespace=namespace)
    except helm_python.HelmError as error:
        raise ClusterError(str(error)) from None
    texts = []
    for path, text in sorted(found.items()):
        inside = path.partition("/")[2]
        if text.strip() and not inside.startswith(_NOT_APPLIED):
            texts.append(f"---\n# Source: {path}\n{text.strip().removeprefix('---').lstrip()}\n")
    return "".join(texts)


def _by_program(values: Mapping[str, Any], release: str, namespace: str) -> str:
    program = shutil.which("helm")
    if program is None:
        raise ClusterError(_NO_HELM)
    command = [program, "template", release, str(CHART.resolve()), "--namespace", namespace]
    try:
        done = subprocess.run(
            [*command, "--skip-tests", "--values", "-"],
            input=json.dumps(dict(values)),
            capture_output=True,
            text=True,
            check=False,
            timeout=_WITHIN_S,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"helm template did not end within {_WITHIN_S:.0f} s") from None
    if done.returncode:
        raise ClusterError(done.stderr.strip())
    return done.stdout


def values_text(values: Mapping[str, Any]) -> str:
    """Values as a file that `helm install --values` takes."""
    return yaml.safe_dump(dict(values), sort_keys=False, width=100)


def read_values(path: Path) -> dict[str, Any]:
    """The values in a file; ClusterError if it cannot be read as a mapping."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClusterError(f"cannot read the values in {path}: {error}") from error
    if not isinstance(found, dict | None):
        raise ClusterError(f"{path}: values must be a mapping")
    return found or {}
