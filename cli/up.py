"""`foretell up`: run a cluster on this machine."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def up(
    cluster: Annotated[
        str, typer.Option(metavar="FILE", help="Cluster file; the flags below override it.")
    ] = "",
    engines: Annotated[
        int | None, typer.Option(min=1, max=64, help="Number of engines; 4 without a file.")
    ] = None,
    engine: Annotated[
        Literal["emulated", "vllm"] | None,
        typer.Option(help="Kind of engine; emulated without a file."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="GPU profile DEVICE/MODEL of the engines.")
    ] = None,
    schedulers: Annotated[
        int | None, typer.Option(min=1, max=16, help="Number of scheduler replicas; default 2.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address the schedulers listen on; default 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port all schedulers share; default 8000, 0 takes a free one."
        ),
    ] = None,
    envoy: Annotated[
        bool | None,
        typer.Option("--envoy", help="Let an Envoy carry the bytes, and place for it."),
    ] = None,
    provision: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX", help="Let engines come and go, so many at least and at most."
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Placement policy; default slo.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="vLLM: folder or name of the model; emulated: the name served."),
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="Python that has vLLM installed; default: this one.")
    ] = None,
    engine_args: Annotated[
        str | None, typer.Option(help="Further flags for every engine, split as a shell would.")
    ] = None,
    start_timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds an engine may take to serve; default 300.")
    ] = None,
    offline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Requests as for `foretell run-batch`, answered beside all others with the lowest "
            "priority into NAME.answers.jsonl; what a cluster leaves, the next one goes on with.",
        ),
    ] = None,
    run_dir: Annotated[
        str, typer.Option(help="Folder for state, sockets and logs; empty: a new one.")
    ] = "",
    restart: Annotated[bool, typer.Option(help="Restart what dies.")] = True,
    duration: Annotated[
        float, typer.Option(min=0, help="Stop by itself, seconds after being ready; 0: never.")
    ] = 0.0,
    plain: Annotated[bool, typer.Option("--plain", help="One line per event, no table.")] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    The cluster file describes it. Without one, it has emulated engines. Environment variables
    override the file: see `foretell reference`.
    """
    from foretell.tools.local.up import UpFlags
    from foretell.tools.local.up import up as run_cluster

    flags = UpFlags(
        engines=engines,
        engine=engine,
        profile=profile,
        model=model,
        python=python,
        engine_args=engine_args,
        start_timeout_s=start_timeout,
        schedulers=schedulers,
        host=host,
        port=port,
        policy=policy,
        envoy=envoy,
        provision=_bounds(provision),
        offline=offline,
    )
    run_cluster(cluster, flags, run_dir=run_dir, restart=restart, duration_s=duration, plain=plain)


def _bounds(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    least, colon, most = text.partition(":")
    if not (colon and least.isdecimal() and most.isdecimal()):
        raise typer.BadParameter("say --provision MIN:MAX, such as 0:4")
    return int(least), int(most)
