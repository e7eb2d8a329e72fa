"""The release has one version number, and every way of asking returns it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from foretell import __version__
from foretell.cli.main import app
from foretell.services.predictor.metrics import PredictorMetrics
from foretell.services.provisioner.metrics import ProvisionerMetrics
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.tagger.metrics import TaggerMetrics
from foretell.telemetry import Declared

ROOT = Path(__file__).parents[2]


def test_the_command_tells_it() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.split() == ["foretell", __version__]


@pytest.mark.parametrize("command", [[], ["status"], ["render"], ["render", "compose"]])
def test_h_is_help(command: list[str]) -> None:
    called = [CliRunner().invoke(app, [*command, flag]) for flag in ("-h", "--help")]
    assert [each.exit_code for each in called] == [0, 0]
    assert called[0].output == called[1].output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str) -> None:
    words = dict.fromkeys(("COMP_WORDS", "_TYPER_COMPLETE_ARGS"), "foretell stat")
    words["COMP_CWORD"] = "1"
    asked = {"_FORETELL_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    command = "from foretell.cli.main import app; app(prog_name='foretell')"
    done = subprocess.run(  # noqa: PLW1510 - judged by what it prints
        [sys.executable, "-c", command], env=words | asked, cwd=ROOT, capture_output=True, text=True
    )
    assert "status" in done.stdout


@pytest.mark.parametrize(
    "declared",
    [
        SchedulerMetrics(CollectorRegistry()),
        PredictorMetrics(CollectorRegistry()),
        TaggerMetrics(),
        ProvisionerMetrics(),
    ],
    ids=["scheduler", "predictor", "tagger", "provisioner"],
)
def test_every_service_exposes_it(declared: Declared) -> None:
    labels = {"version": __version__}
    assert declared.registry.get_sample_value("foretell_build_info", labels) == 1


def test_a_release_is_built_from_what_is_there() -> None:
    """The workflow's files, and its stages in the Dockerfile, exist."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    images = workflow["jobs"]["images"]["strategy"]["matrix"]["include"]
    for image in images:
        dockerfile = (ROOT / image["file"]).read_text()
        assert not image["target"] or f" AS {image['target']}\n" in dockerfile


def test_the_changelog_tells_what_an_upgrade_must_mind() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    for release in text.split("\n## ")[1:]:
        sections = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert set(sections) <= {"Upgrade", "Added", "Changed", "Removed"}
        assert len(sections) == len(set(sections))
        assert "Upgrade" in sections
