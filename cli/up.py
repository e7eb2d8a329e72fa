"""`foretell up`: run a cluster on this machine."""

from enum import StrEnum
from typing import Annotated

import typer


class Engine(StrEnum):
    """What `foretell up` can start."""

    EMULATED = "emulated"
    VLLM = "vllm"


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
