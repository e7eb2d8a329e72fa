"""`foretell accuracy`: compare predicted with actual latencies."""

import json
from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import taking
from foretell.cli.simulated_cluster import INSTALL
from foretell.tools.profiles.sizes import Datasheet


@taking(Datasheet)
def accuracy(
    sheet: Datasheet,
    run_dir: Annotated[
        Path | None, typer.Argument(help="Folder with meta.json and requests.jsonl[.gz].")
    ] = None,
    profile: Annotated[str, typer.Option(help="GPU profile: a shipped name, or a file.")] = "",
    no_profile: Annotated[
        bool,
        typer.Option("--no-profile", help="Start at a datasheet; calibrate on the first third."),
    ] = False,
    device: Annotated[
        str, typer.Option(help="Device whose datasheet --no-profile starts at.")
    ] = "",
    model: Annotated[
        str, typer.Option(help="Model or its config.json, for --no-profile; empty: the run's.")
    ] = "",
    kv_blocks: Annotated[
        int, typer.Option(min=0, help="Number of KV blocks; 0: the run's, else the profile's.")
    ] = 0,
    live: Annotated[
        str, typer.Option(metavar="URL", help="Measure this running engine under load instead.")
    ] = "",
    predictor: Annotated[str, typer.Option(help="Live: gRPC address of its predictor.")] = "",
    snapshots: Annotated[
        str, typer.Option(help="Live: endpoint of its plugin, for the recording.")
    ] = "",
    recording: Annotated[Path | None, typer.Option(help="Live: file to record into.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Live: number of measured requests.")] = 400,
    utilisation: Annotated[
        float, typer.Option(min=0.01, help="Live: mean rate as a ratio of the engine's capacity.")
    ] = 0.7,
    seed: Annotated[int, typer.Option(help="Live: seed for all random draws.")] = 1,
    engine_api_key: Annotated[
        str, typer.Option(envvar="FORETELL_ENGINE_API_KEY", help="Live: the engine's key, if any.")
    ] = "",
) -> None:
    """Compare predicted with actual latencies of a recorded run or a live engine, as JSON."""
    if live:
        from foretell.tools.live.command import live as measure_live
        from foretell.tools.live.measure import LiveOptions

        if run_dir is not None or not predictor:
            raise SystemExit("accuracy: --live takes --predictor and no recorded run")
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
        return
    try:
        from foretell.tools.accuracy.recorded_run import read_run
        from foretell.tools.accuracy.replayed import AccuracyOptions, evaluate
    except ImportError as error:
        raise SystemExit(f"accuracy needs scipy: {INSTALL}") from error
    from foretell.tools.profiles.imports import ProfileError, profile_of
    from foretell.tools.profiles.sizes import known_device

    if run_dir is None:
        raise SystemExit("accuracy: give the folder of a recorded run, or --live URL")
    if bool(profile) == no_profile:
        raise SystemExit("accuracy: give either --profile or --no-profile")
    try:
        options = AccuracyOptions(
            profile=profile_of(profile) if profile else None,
            device=device or known_device(run_dir.resolve().parts),
            sheet=sheet,
            model=model,
            kv_blocks=kv_blocks,
        )
        found = evaluate(read_run(run_dir), options)
    except (ValueError, KeyError, ProfileError) as error:
        raise SystemExit(f"accuracy: {error}") from error
    typer.echo(json.dumps(found.report(), indent=2))
