"""What `foretell tune` is told besides the options of a simulated cluster."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

Goal = Literal["ttft_mean", "ttft_p99", "e2e_mean", "e2e_p99", "tpot_p99", "goodput"]
"""What may be searched for: a name of `foretell.tools.tune.search.MEASURES`."""
MEMORY_UTILIZATION = 0.92
"""vLLM's default."""


@dataclass(frozen=True, slots=True)
class Memory:
    """How engines use their GPU's memory now."""

    utilization: float = MEMORY_UTILIZATION
    """vLLM's `gpu_memory_utilization`."""
    cache_dtype: str = "auto"
    """vLLM's `kv_cache_dtype`."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What is searched for, and how."""

    qps: Annotated[
        float, typer.Option(min=0, help="Requests a second; 0: at the times of the trace.")
    ] = 0.0
    goal: Annotated[Goal, typer.Option(help="What is to become better.")] = "ttft_p99"
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="Ratio up to which no difference matters, for good or ill."),
    ] = 0.03
    seeds: Annotated[
        int,
        typer.Option(
            min=3,
            max=10,
            help="Seeds of the search; as many others confirm what it found.",
        ),
    ] = 6
    capacity_ttft_p99_s: Annotated[
        float,
        typer.Option(
            min=0,
            help="Also find the highest rate at which the P99 of TTFT is within this, as things "
            "are and as recommended; 0: do not.",
        ),
    ] = 0.0
    processes: Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")] = 0
