"""The `foretell` command. Each subcommand imports what it needs when it runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli import bench as bench_app
from cli import length as length_app
from cli import profile as profile_app
from cli import twin
from cli.simulate import capacity, simulate
from cli.train import train_tagger

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Foretell: LLM serving placed by prediction.",
)
app.add_typer(bench_app.app, name="bench")
app.add_typer(length_app.app, name="length")
app.add_typer(profile_app.app, name="profile")
app.add_typer(twin.app, name="twin")
app.command()(simulate)
app.command()(capacity)
app.command()(train_tagger)


class Engine(StrEnum):
    """What `foretell up` can start."""

    EMULATED = "emulated"
    VLLM = "vllm"


@app.command()
def up(
    engines: Annotated[int, typer.Option(min=1, max=64, help="Engines to start.")] = 4,
    engine: Annotated[Engine, typer.Option(help="Kind of engine.")] = Engine.EMULATED,
    profile: Annotated[
        str, typer.Option(help="GPU profile DEVICE/MODEL; empty: the engine's default.")
    ] = "",
    schedulers: Annotated[int, typer.Option(min=1, max=16, help="Scheduler replicas.")] = 2,
    host: Annotated[str, typer.Option(help="Address the schedulers listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port all schedulers share; 0: a free one.")
    ] = 8000,
    policy: Annotated[str, typer.Option(help="Placement policy; empty: the default.")] = "",
    model: Annotated[
        str, typer.Option(help="vLLM: model folder or name; emulated: the name served.")
    ] = "",
    python: Annotated[str, typer.Option(help="Python that has vLLM; empty: this one.")] = "",
    engine_args: Annotated[
        str, typer.Option(help="Further flags for every engine, split as a shell would.")
    ] = "",
    run_dir: Annotated[
        str, typer.Option(help="Folder for state, sockets and logs; empty: a new one.")
    ] = "",
    restart: Annotated[bool, typer.Option(help="Restart what dies.")] = True,
    duration: Annotated[
        float, typer.Option(min=0, help="Stop by itself, seconds after being ready; 0: never.")
    ] = 0.0,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds an engine may take to serve.")
    ] = 300.0,
    plain: Annotated[bool, typer.Option("--plain", help="One line per event, no table.")] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    Everything else is set by environment variables, which the services inherit: see
    `foretell settings`.
    """
    from tools.local.cluster import ClusterOptions
    from tools.local.up import up as run_cluster

    options = ClusterOptions(
        engines=engines,
        engine=engine.value,
        schedulers=schedulers,
        host=host,
        port=port,
        policy=policy,
        profile=profile,
        model=model,
        python=python,
        engine_args=engine_args,
        start_timeout_s=start_timeout,
    )
    run_cluster(options, run_dir=run_dir, restart=restart, duration_s=duration, plain=plain)


@app.command()
def status(
    url: Annotated[str, typer.Option(help="Address of a scheduler.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str, typer.Option(envvar="FORETELL_API_KEY", help="Key, if the scheduler wants one.")
    ] = "",
) -> None:
    """Show the instances of a running cluster as a scheduler sees them."""
    from cli.status import status as show_status

    show_status(url, api_key)


@app.command()
def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="As docs/settings.md.")] = False,
) -> None:
    """List every setting of every service."""
    from tools import settings_reference

    if markdown:
        typer.echo(settings_reference.markdown(), nl=False)
    else:
        settings_reference.show()


@app.command()
def accuracy(
    run_dir: Annotated[
        Path | None, typer.Argument(help="Folder with meta.json and requests.jsonl[.gz].")
    ] = None,
    profile: Annotated[str, typer.Option(help="GPU profile: a shipped name, or a file.")] = "",
    no_profile: Annotated[
        bool, typer.Option("--no-profile", help="Datasheet and the first third of the requests.")
    ] = False,
    device: Annotated[
        str, typer.Option(help="Device whose datasheet --no-profile starts at.")
    ] = "",
    frontend_ms: Annotated[
        float, typer.Option(min=0, help="From a request's arrival to the engine's queue.")
    ] = 0.0,
    sync_scheduling: Annotated[
        bool, typer.Option("--sync-scheduling", help="The engine ran without async scheduling.")
    ] = False,
    kv_blocks: Annotated[
        int, typer.Option(min=0, help="KV blocks; 0: the run's, else the profile's.")
    ] = 0,
    plot: Annotated[Path | None, typer.Option(help="Scatter plot to write, .svg or .png.")] = None,
    live: Annotated[
        str, typer.Option(metavar="URL", help="Measure this running engine under load instead.")
    ] = "",
    predictor: Annotated[str, typer.Option(help="Live: gRPC address of its predictor.")] = "",
    snapshots: Annotated[
        str, typer.Option(help="Live: ZMQ endpoint of its plugin, for the recording.")
    ] = "",
    recording: Annotated[Path | None, typer.Option(help="Live: record into this file.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Live: requests that are measured.")] = 400,
    warm_up: Annotated[int, typer.Option(min=0, help="Live: of the same load before.")] = 100,
    utilisation: Annotated[
        float, typer.Option(min=0.01, help="Live: mean rate, of the engine's capacity.")
    ] = 0.7,
    rate: Annotated[
        float, typer.Option(min=0, help="Live: mean rate a second; 0: by utilisation.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Live: seed of the load.")] = 1,
    engine_api_key: Annotated[
        str, typer.Option(envvar="FORETELL_ENGINE_API_KEY", help="Live: the engine's key, if any.")
    ] = "",
) -> None:
    """Print how far off the twin was, as JSON: of a recorded vLLM run, or of a live engine."""
    if live:
        from tools.live.command import live as measure_live
        from tools.live.measure import LiveOptions

        if run_dir is not None or not predictor:
            raise SystemExit("accuracy: --live takes --predictor and no recorded run")
        measured = LiveOptions(
            url=live,
            predictor=predictor,
            snapshots=snapshots,
            api_key=engine_api_key,
            requests=requests,
            warm_up=warm_up,
            utilisation=utilisation,
            rate_per_s=rate,
            seed=seed,
        )
        measure_live(measured, recording)
        return
    from tools.accuracy.replayed import AccuracyOptions, show

    if run_dir is None:
        raise SystemExit("accuracy: give the folder of a recorded run, or --live URL")
    if bool(profile) == no_profile:
        raise SystemExit("accuracy: give either --profile or --no-profile")
    options = AccuracyOptions(
        profile=profile,
        device=device,
        frontend_s=frontend_ms / 1e3,
        async_scheduling=not sync_scheduling,
        kv_blocks=kv_blocks,
    )
    show(run_dir, options, plot)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
