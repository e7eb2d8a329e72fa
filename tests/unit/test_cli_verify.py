"""`foretell verify-engine`: its output, and what it says if nothing can be compared."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.services.backend import verified

DIFFERENCE = {
    "mode": "async",
    "seed": 3,
    "step": 17,
    "what": "sched",
    "twin": {"r1": 1},
    "vllm": {"r1": 2},
}


def finding(name: str, verdict: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "verdict": verdict, "scenarios": 4, "steps": 90, "reason": ""} | more


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def python_that_finds(folder: Path, *features: dict[str, Any]) -> str:
    """An engine's Python, or a script that acts like one."""
    head = {"version": "9.9.0", "installation": "9.9.0 abc"}
    lines = "\n".join(map(json.dumps, (head, *features)))
    (folder / "findings").write_text(lines)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\ncp "{folder}/findings" "$4"\n')
    python.chmod(0o755)
    return str(python)


def test_what_is_equal_is_kept_for_the_plugin(state: Path) -> None:
    found = (
        finding("LoRA", "equal", first=None),
        finding("images", "approximated", reason="[another] cache", first=None),
    )
    result = CliRunner().invoke(
        app, ["verify-engine", "--python", python_that_finds(state, *found)]
    )
    assert result.exit_code == 0
    assert "9.9.0" in result.output
    assert "[another] cache" in result.output
    kept = verified.verdicts_of("9.9.0 abc", verified.kept_in())
    assert kept == {"LoRA": "equal", "images": "approximated"}


def test_the_first_difference_is_told_and_fails(state: Path) -> None:
    python = python_that_finds(state, finding("LoRA", "different", first=DIFFERENCE))
    result = CliRunner().invoke(app, ["verify-engine", "--python", python, "--json"])
    assert result.exit_code == 1
    told = json.loads(result.output)
    assert not told["passed"]
    assert told["features"][0]["first"] == DIFFERENCE
    assert verified.verdicts_of("9.9.0 abc", verified.kept_in()) == {"LoRA": "different"}


@pytest.mark.parametrize("python", ["/nonexistent", sys.executable])
def test_where_nothing_can_be_compared_nothing_is_kept(python: str, state: Path) -> None:
    """The second Python has no vLLM."""
    result = CliRunner().invoke(app, ["verify-engine", "--python", python])
    assert result.exit_code == 1
    assert result.output.startswith("verify-engine: ")
    assert not verified.kept_in().exists()
