"""`foretell regret`: what a provisioner's decisions have cost."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def regret(
    folder: Annotated[Path, typer.Argument(help="Folder of a provisioner, with its record.")],
    minutes: Annotated[float, typer.Option(min=1, help="Length of a window.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Replay what a provisioner has recorded with one engine less, as many and one more: engine
    hours wasted, requests that one more would have kept within their targets, and the errors of
    forecasts."""
    try:
        from foretell.services.provisioner.record import Recorded
        from foretell.tools import regret as tool
    except ImportError as error:
        raise SystemExit(f"regret: {error}; pip install -e '.[local]' in the checkout") from error
    recorded = Recorded(folder)
    try:
        found = list(tool.look_back(recorded, 60.0 * minutes))
    except ValueError as error:
        raise SystemExit(f"regret: {error}") from error
    if recorded.unreadable:
        typer.echo(f"{recorded.unreadable} lines of the record cannot be read", err=True)
    if not found:
        raise SystemExit("regret: no window has both decisions and answers")
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        tool.show(found)
