"""What `foretell tune` is told besides the options of a simulated cluster."""

from dataclasses import dataclass
from typing import Annotated

import typer

from tools.intervals import FEWEST_VALUES
from tools.tune.search import Goal

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
            min=FEWEST_VALUES,
            help="Seeds of the search; as many others confirm what it found.",
        ),
    ] = FEWEST_VALUES
    capacity_ttft_p99_s: Annotated[
        float,
        typer.Option(
            min=0,
            help="Also find the highest rate at which the P99 of TTFT is within this, as things "
            "are and as recommended; 0: do not.",
        ),
    ] = 0.0
    processes: Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")] = 0
