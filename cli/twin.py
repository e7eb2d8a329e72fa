"""`foretell twin`: run the twin of vLLM's scheduler by itself."""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Run the twin of vLLM's scheduler by itself.")


@app.command()
def replay(
    scenario: Annotated[Path, typer.Argument(help="Scenario, a JSON file.", show_default=False)],
) -> None:
    """Print what the engine does with a scenario: one JSON line per loop iteration."""
    from foretell.engine.replay import replay as iterations
    from foretell.engine.scenario import ScenarioError, parse_scenario

    try:
        data = json.loads(scenario.read_text(encoding="utf-8"))
    except OSError as error:
        raise SystemExit(f"{scenario}: {error.strerror}") from error
    except ValueError as error:  # decoding or parsing failed
        raise SystemExit(f"{scenario} is not JSON: {error}") from error
    try:
        for record in iterations(parse_scenario(data)):
            typer.echo(json.dumps(record, separators=(",", ":")))
    except ScenarioError as error:
        raise SystemExit(f"{scenario}: {error}") from error
