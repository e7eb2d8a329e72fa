"""`foretell tune`: find the engines' flags that serve a trace better."""

import json
from typing import Annotated

import typer

from foretell.cli.options import taking
from foretell.cli.simulated_cluster import INSTALL, EngineLimits
from foretell.tools.simulate.options import SimulateOptions
from foretell.tools.tune.options import Memory, TuneOptions


@taking(SimulateOptions, EngineLimits, TuneOptions)
def tune(
    options: SimulateOptions,
    engines: EngineLimits,
    tuning: TuneOptions,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="GPU profile, a shipped name or a file; several as P1xN1,P2xN2. With --cluster, "
            "that of all its engines."
        ),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Cluster file; engines, policy and targets are those in it."
        ),
    ] = "",
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Flag that stays as it is, such as kv-cache-dtype; several times."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Simulate a trace with other engine flags, and print which to change and what that gains."""
    try:
        from foretell.tools.tune import cluster_file, report, run
    except ImportError as error:
        raise SystemExit(f"tune: {error}; {INSTALL}") from error
    try:
        if cluster:
            options, memory = cluster_file.with_cluster(options, cluster, profile, engines.limits())
        elif profile:
            options, memory = engines.with_engines(options, profile), Memory()
        else:
            raise ValueError("say which engines: --cluster FILE, or --profile NAME --instances N")
        tuned = run.tune(options, tuning, memory, frozenset(keep or ()))
    except ValueError as error:
        raise SystemExit(f"tune: {error}") from error
    if as_json:
        typer.echo(json.dumps(report.as_json(tuned), indent=2))
    else:
        report.show(tuned)
