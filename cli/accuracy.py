"""`foretell accuracy`: compare predicted with actual latencies."""

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import Seed


def accuracy(
    live: Annotated[str, typer.Option(metavar="URL", help="Running engine to measure under load.")],
    predictor: Annotated[str, typer.Option(help="gRPC address of its predictor.")],
    snapshots: Annotated[str, typer.Option(help="Endpoint of its plugin, for the recording.")] = "",
    recording: Annotated[Path | None, typer.Option(help="File to record into.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Number of measured requests.")] = 400,
    utilisation: Annotated[
        float, typer.Option(min=0.01, help="Mean rate as a ratio of the engine's capacity.")
    ] = 0.7,
    seed: Seed = 1,
    engine_api_key: Annotated[
        str, typer.Option(envvar="FORETELL_ENGINE_API_KEY", help="The engine's key, if any.")
    ] = "",
) -> None:
    """Compare predicted with actual latencies of a live engine, as JSON."""
    from foretell.tools.live.command import live as measure_live
    from foretell.tools.live.measure import LiveOptions

    measured = LiveOptions(
        url=live,
        predictor=predictor,
        snapshots=snapshots,
        api_key=engine_api_key,
        requests=requests,
        utilisation=utilisation,
        seed=seed,
    )
    measure_live(measured, recording)
