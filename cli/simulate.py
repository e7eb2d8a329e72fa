"""`foretell simulate`: run a cluster in virtual time."""

import json
from typing import Annotated

import typer

from cli.simulated_cluster import INSTALL, SimulatedCluster, fail, of_a_cluster


@of_a_cluster
def simulate(
    cluster: SimulatedCluster,
    qps: Annotated[
        float, typer.Option(min=0, help="Requests a second; 0: at the times of the trace.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed for all random draws.")] = 1,
) -> None:
    """Run a cluster in virtual time and print what came of it as JSON."""
    try:
        from tools.simulate.run import run_showing_progress
    except ImportError as error:
        fail("simulate", ImportError(f"{error}; {INSTALL}"))
    try:
        found = run_showing_progress(cluster.options(), qps, seed)
    except ValueError as error:
        fail("simulate", error)
    typer.echo(json.dumps(found.summary(), indent=2))
