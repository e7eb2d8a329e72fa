"""`foretell bench`: measure what predictions cost on this machine."""

import json
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Measure what predictions cost on this machine.")


@app.command()
def predict(
    running: Annotated[int, typer.Option(min=1, help="Number of running requests.")],
    waiting: Annotated[int, typer.Option(min=0, help="Number of waiting requests.")],
    predictions: Annotated[int, typer.Option(min=1, help="Number of predictions to time.")] = 1000,
    sync_scheduling: Annotated[
        bool, typer.Option("--sync-scheduling", help="Take an engine without async scheduling.")
    ] = False,
) -> None:
    """Print the cost of predictions as JSON (bench/overhead/predict.md explains it)."""
    try:
        from foretell.tools.harness.cases import Size
        from foretell.tools.harness.predict import PredictOptions, measure_predict
    except ImportError as error:
        raise SystemExit(
            f"bench predict: {error}; pip install -e '.[local]' in the checkout"
        ) from error

    options = PredictOptions(
        size=Size(running, waiting),
        predictions=predictions,
        async_scheduling=not sync_scheduling,
    )
    typer.echo(json.dumps(measure_predict(options), indent=1))
