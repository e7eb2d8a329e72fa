"""`foretell verify-engine`: whether the twin is an installed vLLM's own scheduler."""

import json
import sys
from typing import Annotated

import typer

from foretell.cli.options import AsJson, refusing


def verify_engine(
    python: Annotated[
        str, typer.Option(help="Python that has vLLM and Foretell installed; default: this one.")
    ] = "",
    seeds: Annotated[
        int, typer.Option(min=1, help="Random scenarios of each feature, in each mode.")
    ] = 12,
    as_json: AsJson = False,
) -> None:
    """Compare the installed vLLM's scheduler with the twin, step by step, feature by feature.

    No GPU and no model is needed. What was found is kept for engines of this user: with a vLLM
    newer than all known ones, predictions are made only of features that were found equal.
    """
    from rich.console import Console

    from foretell.tools.verify import run

    with refusing("verify-engine", run.VerifyError, OSError):
        findings = run.verify(python or sys.executable, seeds)
        path = run.keep(findings)
    if as_json:
        told = {
            "vllm": findings.version,
            "installation": findings.installation,
            "passed": findings.passed,
            "features": findings.features,
        }
        typer.echo(json.dumps(told, indent=2))
    else:
        console = Console()
        run.show(findings, console)
        console.print(f"kept in {path}", highlight=False)
    if not findings.passed:
        raise SystemExit(1)
