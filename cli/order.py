"""`foretell order`: in which order a file of offline requests is done soonest."""

import json
from pathlib import Path
from typing import Annotated

import typer


def order(
    file: Annotated[
        Path,
        typer.Argument(help="Requests, one JSON object a line, as for the batch API."),
    ],
    profile: Annotated[str, typer.Option(help="GPU profile of the engine.")] = "H100/Llama-3.1-8B",
    output: Annotated[
        Path | None, typer.Option(help="File to write the requests to, in the order done soonest.")
    ] = None,
) -> None:
    """Print, as JSON, what a file of offline requests asks of a GPU, and how long a simulated
    engine takes for it as it stands (fcfs), depth-first by shared prefixes (dfs), and blended."""
    try:
        from foretell.tools.order.judge import judge
    except ImportError as error:
        raise SystemExit(f"order: {error}; pip install -e '.[length]' in the checkout") from error
    try:
        found = judge(file, profile, output)
    except (OSError, ValueError) as error:
        raise SystemExit(f"order: {error}") from error
    typer.echo(json.dumps(found, indent=2))
