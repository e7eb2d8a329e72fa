"""Commands that measure engines: `foretell check` and `verify-engine`."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args

import typer

from foretell.cli.options import AsJson, refusing, taking
from foretell.tools.check.options import POLICIES, STAGES, CheckOptions, Stage

_LIST = "Comma-separated; "


@taking(CheckOptions)
def check(
    options: CheckOptions,
    stages: Annotated[str, typer.Option(help=f"{_LIST}of {', '.join(STAGES)}.")] = ",".join(STAGES),
    policies: Annotated[
        str, typer.Option(help=f"{_LIST}policies that stage `cluster` compares.")
    ] = ",".join(POLICIES),
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the page of an earlier run's folder; run nothing."
        ),
    ] = None,
) -> None:
    """Measure what Foretell is worth on this machine, and write a page of results.

    Starts real vLLM engines, on its GPUs or else on the CPU. Every stage writes its results before
    the next one begins; `--report` writes the page of a run that was killed.
    """
    if report is not None:
        from foretell.tools.check.page import NoResults, write_page

        try:
            print(write_page(report).read_text(encoding="utf-8"))  # noqa: T201  the output
        except NoResults as error:
            raise SystemExit(f"foretell check: {error}") from None
        return
    from foretell.tools.check.run import check as run

    chosen = _split(stages)
    known = get_args(Stage)
    if unknown := [each for each in chosen if each not in known]:
        raise typer.BadParameter(f"no stage {unknown[0]!r}; there are {', '.join(known)}")
    run(
        replace(
            options,
            python=options.python and str(Path(options.python).absolute()),
            stages=tuple(stage for stage in known if stage in chosen),
            policies=tuple(_split(policies)),
        )
    )


def _split(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def verify_engine(
    python: Annotated[
        str, typer.Option(help="Python that has vLLM and Foretell installed; default: this one.")
    ] = "",
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of random scenarios of each feature, in each mode.")
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
        found = {
            "vllm": findings.version,
            "installation": findings.installation,
            "passed": findings.passed,
            "features": findings.features,
        }
        typer.echo(json.dumps(found, indent=2))
    else:
        console = Console()
        run.show(findings, console)
        console.print(f"kept in {path}", highlight=False)
    if not findings.passed:
        raise SystemExit(1)
