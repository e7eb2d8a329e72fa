"""Verifies an engine's vLLM in its own Python, prints the findings, and stores them."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from foretell.services.backend import verified

_TIMEOUT_S = 1800.0
_SHOWN_LINES = 3
_COLOURS = {"equal": "green", "approximated": "yellow", "different": "red"}


class VerifyError(Exception):
    """Nothing could be compared; the message says why."""


@dataclass(frozen=True)
class Findings:
    """The findings about one installation of vLLM."""

    version: str
    installation: str
    features: list[dict[str, Any]]
    """As `foretell.tools.verify.compare.Finding`."""

    @property
    def verdicts(self) -> dict[str, str]:
        return {each["name"]: each["verdict"] for each in self.features}

    @property
    def passed(self) -> bool:
        return "different" not in self.verdicts.values()


def verify(python: str, seeds: int) -> Findings:
    """Compare under this Python; raises `VerifyError`."""
    env = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    # Without a GPU, vLLM must be told which device it targets.
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        env.setdefault("VLLM_TARGET_DEVICE", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "findings"
        command = [python, "-P", "-m", "foretell.tools.verify", str(path), str(seeds)]
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise VerifyError(f"cannot run {python}: {error}") from error
        if done.returncode:
            last = "\n".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:])
            raise VerifyError(f"{python} with its vLLM and Foretell cannot compare:\n{last}")
        head, *features = map(json.loads, path.read_text().splitlines())
    return Findings(head["version"], head["installation"], features)


def keep(findings: Findings) -> Path:
    """Store the verdicts for the plugin in this user's engines; return their path."""
    path = verified.kept_in()
    verified.keep(findings.installation, findings.verdicts, path)
    return path


def show(findings: Findings, console: Console) -> None:
    """Print a table of verdicts and first differences."""
    table = Table("feature", "verdict", "scenarios", "steps", "where", box=None)
    for each in findings.features:
        verdict = f"[{_COLOURS[each['verdict']]}]{each['verdict']}[/]"
        counts = (str(each["scenarios"]), str(each["steps"]))
        where = escape(each["reason"] or _where(each["first"]))
        table.add_row(each["name"], verdict, *counts, where)
    console.print(f"vLLM {findings.version}, its own scheduler beside the twin:")
    console.print(table, markup=True, highlight=False)


def _where(first: dict[str, Any] | None) -> str:
    if first is None:
        return ""
    where = f"seed {first['seed']} {first['mode']}, step {first['step']}, {first['what']}"
    return f"{where}: twin {_brief(first['twin'])}, vLLM {_brief(first['vllm'])}"


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
