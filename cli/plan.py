"""`foretell plan`: which engines, and how many, keep a trace's targets."""

import json
from typing import Annotated

import typer

from foretell.cli.options import taking
from foretell.cli.simulated_cluster import INSTALL
from foretell.tools.simulate.options import SimulateOptions


@taking(SimulateOptions)
def plan(
    options: SimulateOptions,
    profile: Annotated[
        list[str],
        typer.Option(help="GPU profile, a shipped name or a file; several times: each is tried."),
    ],
    max_num_seqs: Annotated[
        list[int] | None, typer.Option(min=1, help="vLLM's max_num_seqs; each is tried.")
    ] = None,
    max_num_batched_tokens: Annotated[
        list[int] | None, typer.Option(min=1, help="vLLM's max_num_batched_tokens; each is tried.")
    ] = None,
    qps: Annotated[
        float, typer.Option(min=0, help="Requests a second; 0: at the times of the trace.")
    ] = 0.0,
    within: Annotated[
        float, typer.Option(min=0.01, max=1, help="Ratio of requests that must meet their targets.")
    ] = 0.99,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; with each.")] = 3,
    most: Annotated[int, typer.Option(min=1, help="Engines of a kind at most.")] = 64,
    price: Annotated[
        list[str] | None,
        typer.Option(help="PROFILE=PRICE of an engine for an hour; several times."),
    ] = None,
    offline: Annotated[
        str,
        typer.Option(
            help="Trace of offline requests: print what these engines do of them besides, if they "
            "co-schedule."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
    processes: Annotated[
        int, typer.Option(min=0, help="Number of processes; 0: one per core.")
    ] = 0,
) -> None:
    """Simulate a trace on more and more engines of each kind, and print the fewest that keep its
    targets."""
    try:
        from foretell.tools.simulate import plan as plans
    except ImportError as error:
        raise SystemExit(f"plan: {error}; {INSTALL}") from error
    try:
        wanted = plans.PlanOptions(
            plans.kinds_of(profile, max_num_seqs or [], max_num_batched_tokens or []),
            qps,
            within,
            tuple(range(1, seeds + 1)),
            most,
            plans.parse_prices(price or []),
            offline,
        )
        found = plans.make_plans(options, wanted, processes)
    except ValueError as error:
        raise SystemExit(f"plan: {error}") from error
    if as_json:
        typer.echo(json.dumps(plans.as_json(found), indent=2))
    else:
        plans.show(found)
