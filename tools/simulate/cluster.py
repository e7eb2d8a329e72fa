"""Creates the simulated cluster from options."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from foretell.latency.tables import profile_step_time
from foretell.model import LengthEstimate
from foretell.provision import ProvisionConfig, Strategy
from foretell.provision.strategies import make_strategy
from foretell.sim import (
    ClusterConfig,
    Fault,
    FaultKind,
    Provisioning,
    SimInstanceConfig,
    true_length,
)
from foretell.tools.profiles.imports import ProfileError, profile_of, with_graphs
from foretell.tools.simulate.options import EngineOptions, SimulatedProvisioning, SimulateOptions
from foretell.workload import Arrival, noisy_length, residual_length, stated_length

_FORETELL_EVERY = 10
"""One request in ten is predicted again: enough to tell the error; each costs like a placement."""


def cluster_config(
    options: SimulateOptions, seed: int, *, prefixes: bool, trace: Sequence[Arrival] = ()
) -> ClusterConfig:
    """The cluster; raises ValueError if the options are wrong.

    `prefixes`: whether requests name their prompts' blocks. `trace`: the arrivals from whose
    lengths the estimates of `--estimates tagger` are drawn.
    """
    instances: list[SimInstanceConfig] = []
    for engine in options.engines:
        instances += [instance_config(engine, options)] * engine.instances
    return ClusterConfig(
        instances=tuple(instances),
        estimate=estimator(options.estimates, seed, trace),
        length_rule=options.length_rule,
        publish_interval_s=options.publish_interval_s,
        network_delay_s=options.network_delay_s,
        dispatch_delay_s=options.dispatch_delay_s,
        foretell_every=_FORETELL_EVERY,
        prefix_cache=prefixes and options.prefix_caching,
        faults=tuple(map(parse_fault, options.faults)),
        reject_late=options.reject_late,
    )


def instance_config(engine: EngineOptions, options: SimulateOptions) -> SimInstanceConfig:
    """One engine of a group; limits that are not given are the profile's."""
    try:
        profile = profile_of(engine.profile)
    except ProfileError as error:
        raise ValueError(str(error)) from error
    if profile.data_parallel > 1:
        raise ValueError(
            f"{profile.name} is of {profile.data_parallel} data-parallel ranks, which are not "
            "simulated"
        )
    if not (engine.num_blocks or profile.total_blocks):
        raise ValueError(f"{profile.name} does not say how many KV blocks fit: give --num-blocks")
    config = profile.engine(
        total_blocks=engine.num_blocks,
        max_num_seqs=engine.max_num_seqs,
        max_num_scheduled_tokens=engine.max_num_batched_tokens,
        max_model_len=engine.max_model_len,
        enable_prefix_caching=options.prefix_caching,
        async_scheduling=True,
        policy=options.scheduling_policy,
    )
    return SimInstanceConfig(config, profile_step_time(with_graphs(profile, config.max_num_seqs)))


def engine_facts(engine: EngineOptions, options: SimulateOptions) -> dict[str, Any]:
    """The limits of a group of engines, for the output."""
    config = instance_config(engine, options).engine
    return {
        "profile": engine.profile,
        "instances": engine.instances,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_scheduled_tokens,
        "num_blocks": config.total_blocks,
        "block_size": config.block_size_tokens,
        "max_model_len": config.max_model_len,
    }


def provisioning_of(options: SimulateOptions, given: SimulatedProvisioning) -> Provisioning | None:
    """The provisioning that the options ask for; ValueError if they contradict each other."""
    if not given.provision:
        return None
    if len(options.engines) != 1:
        raise ValueError("--provision goes with one profile")
    config = ProvisionConfig(
        minimum=given.min_instances, maximum=options.instances, cold_start_s=given.cold_start_s
    )

    def strategy() -> Strategy:
        targets = {"ttft_s": options.ttft_slo_s, "tpot_s": options.tpot_slo_s}
        wants = given.provision == "foresight"
        chosen = {name: value for name, value in targets.items() if value and wants}
        return make_strategy(given.provision, **chosen)

    strategy()  # an unknown name is refused before anything is simulated
    return Provisioning(strategy, config, given.min_instances, given.cold_start_s)


def estimator(
    text: str, seed: int, trace: Sequence[Arrival]
) -> Callable[[Arrival], LengthEstimate]:
    """The estimates that `true`, `told`, `tagger` or `noise:SIGMA` stands for."""
    kind, _, sigma = text.partition(":")
    if text == "true":
        return true_length
    if text == "told":
        return stated_length
    draws = Random(f"{seed} estimates")
    try:
        if text == "tagger":
            return residual_length(trace, draws)
        if kind == "noise":
            return noisy_length(float(sigma), draws)
    except ValueError as error:
        raise ValueError(f"--estimates {text}: {error}") from error
    raise ValueError(f"--estimates is true, told, tagger or noise:SIGMA, not {text}")


def parse_fault(text: str) -> Fault:
    """The fault that `KIND[=FACTOR]:INSTANCE:AT_S[:FOR_S]` stands for."""
    kinds = ", ".join(kind.value for kind in FaultKind)
    what, *rest = text.split(":")
    kind, _, factor = what.partition("=")
    try:
        fault = Fault(FaultKind(kind), int(rest[0]), float(rest[1]))
        if len(rest) > 2:
            fault = replace(fault, for_s=float(rest[2]))
        if len(rest) > 3 or (factor and fault.kind is not FaultKind.SLOW):
            raise ValueError(text)
        return replace(fault, factor=float(factor)) if factor else fault
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"--fault {text}: expected KIND:INSTANCE:AT_S[:FOR_S], KIND one of {kinds}; slow=FACTOR"
        ) from error
