"""`foretell simulate`: run a cluster in virtual time."""

import json
from typing import Annotated

import typer

from foretell.cli.options import taking
from foretell.cli.simulated_cluster import INSTALL, EngineFlags
from foretell.tools.simulate.options import ProvisionOptions, SimulateOptions


@taking(SimulateOptions, EngineFlags, ProvisionOptions)
def simulate(
    options: SimulateOptions,
    engines: EngineFlags,
    provision: ProvisionOptions,
    qps: Annotated[
        float, typer.Option(min=0, help="Requests a second; 0: at the times of the trace.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed for all random draws.")] = 1,
) -> None:
    """Run a cluster in virtual time and print what came of it as JSON."""
    try:
        from foretell.tools.simulate.provisioning import provisioning_of
        from foretell.tools.simulate.run import run_showing_progress
    except ImportError as error:
        raise SystemExit(f"simulate: {error}; {INSTALL}") from error
    try:
        options = engines.added_to(options)
        found = run_showing_progress(
            options,
            qps,
            seed,
            provisioning=provisioning_of(options, provision),
        )
    except ValueError as error:
        raise SystemExit(f"simulate: {error}") from error
    typer.echo(json.dumps(found.summary(), indent=2))
