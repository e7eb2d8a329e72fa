"""`foretell accuracy --live` from the command line."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.tools.live.command import error_table
from foretell.tools.live.measure import CannotMeasure, completed


def run(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["accuracy", *map(str, args)])
    text = str(result.exception) if isinstance(result.exception, SystemExit) else ""
    return result.exit_code, result.stdout + text


def test_it_says_what_is_missing(tmp_path: Path) -> None:
    nowhere = ("--live", "http://127.0.0.1:1", "--predictor", f"unix:{tmp_path}/none.sock")
    assert run("--live", "http://127.0.0.1:1")[0] == 2
    code, text = run(*nowhere)
    assert code != 0
    assert "no engine at http://127.0.0.1:1" in text
    assert "does not exist" in run(*nowhere, "--recording", tmp_path / "none" / "run.zip")[1]


def test_work_is_run_to_its_end_or_its_failure_told() -> None:
    async def seven() -> int:
        return 7

    async def failing() -> int:
        raise CannotMeasure("the engine is asleep")

    assert completed(seven()) == 7
    with pytest.raises(SystemExit, match="accuracy: the engine is asleep"):
        completed(failing())


def test_the_table_shows_every_predictor() -> None:
    errors = {"median": 0.081, "p90": 0.2, "mean": 0.1, "signed_median": -0.012, "count": 3}
    console = Console(file=io.StringIO(), width=160)
    console.print(error_table({"foretell": {"ttft": errors, "e2e": errors}}))
    shown = console.file.getvalue()
    assert "foretell" in shown
    assert shown.count("8.1%") == 2
    assert shown.count("-1.2%") == 2
