"""Commands that run clusters in virtual time: `foretell simulate`, `capacity` and `plan`."""

import json
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from foretell.cli.options import AsJson, Processes, Qps, Seed, refusing, taking
from foretell.tools.simulate.options import (
    EMULATED,
    SimulatedProvisioning,
    SimulateOptions,
    parse_engines,
)

_NEEDS = "profiles"
_PER_ENGINE = "Give it once, or once for each profile; the default is the profile's."


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """The engines and their faults; a field for each option."""

    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="GPU profile, a shipped name or a file; several as P1xN1,P2xN2. Without one, "
            f"{EMULATED.profile}, {EMULATED.instances} engines of it."
        ),
    ] = None
    instances: Annotated[
        int, typer.Option(min=0, help="Number of engines, where there is one profile; 0: one.")
    ] = 0
    max_num_seqs: Annotated[
        list[int] | None, typer.Option(min=1, help=f"vLLM's max_num_seqs. {_PER_ENGINE}")
    ] = None
    max_num_batched_tokens: Annotated[
        list[int] | None, typer.Option(min=1, help=f"vLLM's max_num_batched_tokens. {_PER_ENGINE}")
    ] = None
    num_blocks: Annotated[
        list[int] | None, typer.Option(min=1, help=f"Usable KV blocks. {_PER_ENGINE}")
    ] = None
    max_model_len: Annotated[
        list[int] | None, typer.Option(min=1, help=f"vLLM's max_model_len. {_PER_ENGINE}")
    ] = None
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="KIND:INSTANCE:AT_S[:FOR_S]; crash, slow[=FACTOR], mute or dead-predictor."
        ),
    ] = None

    def added_to(self, options: SimulateOptions) -> SimulateOptions:
        """The options with these engines; ValueError if flags contradict each other."""
        count = self.instances if self.profile else self.instances or EMULATED.instances
        names = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "max_model_len")
        limits = {name: getattr(self, name) or [] for name in names}
        engines = parse_engines(self.profile or [EMULATED.profile], count, limits)
        return replace(options, engines=engines, faults=tuple(self.fault or ()))


@taking(SimulateOptions, EngineFlags, SimulatedProvisioning)
def simulate(
    options: SimulateOptions,
    engines: EngineFlags,
    provision: SimulatedProvisioning,
    qps: Qps = 0.0,
    seed: Seed = 1,
) -> None:
    """Run a cluster in virtual time and print the results as JSON."""
    with refusing("simulate", needs=_NEEDS):
        from foretell.tools.simulate.cluster import provisioning_of
        from foretell.tools.simulate.run import run_showing_progress
    with refusing("simulate", ValueError):
        options = engines.added_to(options)
        provisioning = provisioning_of(options, provision)
        found = run_showing_progress(options, qps, seed, provisioning=provisioning)
    typer.echo(json.dumps(found.summary(), indent=2))


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
        int, typer.Option(min=1, help="Number of seeds; there is a search for each.")
    ] = 5,
    tolerance: Annotated[
        float, typer.Option(min=0.0001, help="Relative width at which a search ends.")
    ] = 0.01,
    processes: Processes = 0,
) -> None:
    """Find the highest rate within a bound on the P99 of TTFT, or at which most requests meet
    their targets, and print it as JSON."""
    with refusing("capacity", needs=_NEEDS):
        from foretell.tools.simulate.capacity import Search, find_capacity
    with refusing("capacity", ValueError):
        options = engines.added_to(options)
        search = Search(
            bound_s=ttft_p99_s,
            goodput=goodput,
            seeds=tuple(range(1, seeds + 1)),
            start_qps=float(options.instances),
            tolerance=tolerance,
        )
        found = find_capacity(options, search, processes)
    typer.echo(json.dumps(found, indent=2))


@taking(SimulateOptions)
def plan(
    options: SimulateOptions,
    profile: Annotated[
        list[str],
        typer.Option(help="GPU profile, a shipped name or a file; repeatable, each is tried."),
    ],
    max_num_seqs: Annotated[
        list[int] | None, typer.Option(min=1, help="vLLM's max_num_seqs; each is tried.")
    ] = None,
    max_num_batched_tokens: Annotated[
        list[int] | None, typer.Option(min=1, help="vLLM's max_num_batched_tokens; each is tried.")
    ] = None,
    qps: Qps = 0.0,
    within: Annotated[
        float, typer.Option(min=0.01, max=1, help="Ratio of requests that must meet their targets.")
    ] = 0.99,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds, with each of which they must.")
    ] = 3,
    most: Annotated[int, typer.Option(min=1, help="Most engines of a kind that are tried.")] = 64,
    price: Annotated[
        list[str] | None,
        typer.Option(help="PROFILE=PRICE of an engine for an hour; repeatable."),
    ] = None,
    offline: Annotated[
        str,
        typer.Option(
            help="Trace of offline requests: print how many of them these engines serve besides, "
            "if they co-schedule."
        ),
    ] = "",
    as_json: AsJson = False,
    processes: Processes = 0,
) -> None:
    """Simulate a trace on more and more engines of each kind, and print the fewest that meet its
    targets."""
    with refusing("plan", needs=_NEEDS):
        from foretell.tools.simulate import plan as plans
    with refusing("plan", ValueError):
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
    if as_json:
        typer.echo(json.dumps(plans.as_json(found), indent=2))
    else:
        plans.show(found)
