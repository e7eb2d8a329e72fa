"""Options of a simulated cluster, as plain data that can be sent to other processes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from foretell.model.clock import SNAPSHOT_INTERVAL_S

TraceFormat = Literal["auto", "csv", "mooncake", "log"]

_PROFILE_TIMES_COUNT = re.compile(r"(.+)x(\d+)")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Some equal engines. A limit of 0 is the profile's."""

    profile: str
    instances: int
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    num_blocks: int = 0
    max_model_len: int = 0


EMULATED = EngineOptions("A30/Llama-2-7b-hf", 4)
"""The engines that `foretell up` emulates by default."""


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """A cluster and its requests, without their rate and seed."""

    trace: Annotated[
        str,
        typer.Option(
            help="CSV, Mooncake JSON lines or a scheduler's request log, gzipped or not; empty: "
            "chats that ship."
        ),
    ] = ""
    engines: tuple[EngineOptions, ...] = ()
    policy: Annotated[str, typer.Option(help="Placement policy.")] = "slo"
    trace_format: TraceFormat = "auto"
    """The format of the trace; "auto" finds it by the file's name and first line."""
    requests: Annotated[
        int, typer.Option(min=0, help="Number of requests; 0: as many as the trace has.")
    ] = 0
    cv: Annotated[
        float,
        typer.Option(
            min=0.01,
            help="Coefficient of variation of the gaps between arrivals, for traces without times.",
        ),
    ] = 1.0
    estimates: Annotated[
        str,
        typer.Option(
            help="Length estimates: true; told, by the trace; tagger, with the shipped model's "
            "errors; or noise:SIGMA (of the logarithm)."
        ),
    ] = "true"
    length_rule: Literal["survival", "block"] = "survival"
    """How predictors use estimates: as a distribution, or as the Block paper does."""
    prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="vLLM's prefix caching; matters where the trace names its prompts' blocks.",
        ),
    ] = True
    schedulers: Annotated[int, typer.Option(min=1, help="Number of scheduler replicas.")] = 1
    publish_interval_s: Annotated[
        float, typer.Option(min=0.001, help="Least seconds between two snapshots of an engine.")
    ] = SNAPSHOT_INTERVAL_S
    dispatch_delay_s: float = 0.002
    """Seconds from a choice to the engine's queue."""
    network_delay_s: float = 0.0
    """Seconds from scheduler to predictor, and back."""
    ttft_slo_s: Annotated[
        float, typer.Option(min=0, help="TTFT target of every request; 0: the trace's, if any.")
    ] = 0.0
    tpot_slo_s: Annotated[
        float, typer.Option(min=0, help="TPOT target of every request; 0: the trace's, if any.")
    ] = 0.0
    reject_late: Annotated[
        bool,
        typer.Option("--reject-late", help="Reject requests that no instance can answer in time."),
    ] = False
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        typer.Option(help="vLLM's scheduling policy: fcfs, or priority by the trace."),
    ] = "fcfs"
    faults: tuple[str, ...] = ()

    @property
    def instances(self) -> int:
        """Number of engines of all kinds together."""
        return sum(engine.instances for engine in self.engines)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProvisioning:
    """How instances come and go; a field for each option."""

    provision: Annotated[
        str,
        typer.Option(
            help="Provisioning strategy, such as foresight, that starts and drains engines, up to "
            "the number given."
        ),
    ] = ""
    min_instances: Annotated[
        int, typer.Option(min=1, help="With --provision: engines at least, and at first.")
    ] = 1
    cold_start_s: Annotated[
        float, typer.Option(min=0, help="With --provision: seconds until an engine is ready.")
    ] = 120.0


def parse_engines(
    profiles: Sequence[str], instances: int, limits: Mapping[str, Sequence[int]]
) -> tuple[EngineOptions, ...]:
    """One group of engines for each profile, `PROFILE` or `PROFILExCOUNT`, also `A,B`.

    Each of `limits` is given not at all, once for all groups, or once for each.
    """
    parts = [part for text in profiles for part in text.split(",") if part]
    groups = []
    for index, part in enumerate(parts):
        match = _PROFILE_TIMES_COUNT.fullmatch(part)
        if match is None and len(parts) > 1:
            raise ValueError(f"several profiles need counts, {part}xCOUNT")
        if match is not None and instances:
            raise ValueError("--instances goes with one profile without a count")
        name, count = (match[1], int(match[2])) if match else (part, instances or 1)
        if count < 1:
            raise ValueError(f"{part}: there must be at least one")
        chosen = {key: _of_group(key, values, index, len(parts)) for key, values in limits.items()}
        groups.append(EngineOptions(name, count, **chosen))
    return tuple(groups)


def _of_group(key: str, values: Sequence[int], index: int, groups: int) -> int:
    if not values:
        return 0
    if len(values) not in (1, groups):
        flag = "--" + key.replace("_", "-")
        raise ValueError(f"{flag} was given {len(values)} times for {groups} profiles")
    return values[index % len(values)]
