"""`foretell capacity`: find the highest rate that a simulated cluster sustains."""

import json
from typing import Annotated

import typer

from foretell.cli.options import taking
from foretell.cli.simulated_cluster import INSTALL, EngineFlags
from foretell.tools.simulate.options import SimulateOptions


@taking(SimulateOptions, EngineFlags)
def capacity(
    options: SimulateOptions,
    engines: EngineFlags,
    ttft_p99_s: Annotated[float, typer.Option(min=0.001, help="Bound on the P99 of TTFT.")] = 3.0,
    goodput: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Ratio of all requests that must meet their targets, instead of that bound.",
        ),
    ] = 0.0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds; each gets a search of its own.")
    ] = 5,
    tolerance: Annotated[
        float, typer.Option(min=0.0001, help="Relative width at which a search ends.")
    ] = 0.01,
    processes: Annotated[
        int, typer.Option(min=0, help="Number of processes; 0: one per core.")
    ] = 0,
) -> None:
    """Find the highest rate within a bound on the P99 of TTFT, or at which most requests meet
    their targets, and print it as JSON."""
    try:
        from foretell.tools.simulate.capacity import Search, find_capacity
    except ImportError as error:
        raise SystemExit(f"capacity: {error}; {INSTALL}") from error
    try:
        options = engines.added_to(options)
        search = Search(
            bound_s=ttft_p99_s,
            goodput=goodput,
            seeds=tuple(range(1, seeds + 1)),
            start_qps=float(options.instances),
            tolerance=tolerance,
        )
        found = find_capacity(options, search, processes)
    except ValueError as error:
        raise SystemExit(f"capacity: {error}") from error
    typer.echo(json.dumps(found, indent=2))
