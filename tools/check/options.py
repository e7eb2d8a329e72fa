"""The options of `foretell check`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

Stage = Literal["attach", "cost", "truth", "cluster", "beside"]
STAGES: tuple[Stage, ...] = ("attach", "cost", "truth", "cluster", "beside")
POLICIES = ("slo", "least_outstanding", "round_robin", "predicted_latency")
"""The default, two that predict nothing, and the Block paper's."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Everything that a run depends on."""

    model: Annotated[str, typer.Option(help="Folder or name of a model with weights.")] = ""
    dummy: Annotated[
        str,
        typer.Option(
            help="A shipped shape with random weights, which needs no download: qwen3-0.6b, "
            "qwen3-1.7b, qwen3-8b, llama-3.1-8b, tiny (the default without a GPU)."
        ),
    ] = ""
    minutes: Annotated[
        float, typer.Option(min=1, help="The whole time, from the start to the page.")
    ] = 10.0
    engines: Annotated[
        int,
        typer.Option(min=0, max=16, help="Engines, two at least; 0: one a GPU, or as fit on one."),
    ] = 0
    engine_args: Annotated[str, typer.Option(help="Further flags of vLLM for every engine.")] = ""
    python: Annotated[
        str, typer.Option(help="Python that has vLLM installed; default: this one.")
    ] = ""
    profile: Annotated[
        str, typer.Option(help="GPU profile DEVICE/MODEL that predictors start from.")
    ] = ""
    ttft_target_s: Annotated[
        float,
        typer.Option("--ttft-target", min=0.001, help="Seconds within which a good answer begins."),
    ] = 1.0
    tpot_target_s: Annotated[
        float,
        typer.Option(
            "--tpot-target", min=0.001, help="Mean seconds between tokens of a good answer."
        ),
    ] = 0.1
    seed: Annotated[int, typer.Option(help="Seed of all requests.")] = 1
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of results; made if missing.")
    ] = Path("foretell-check")
    stages: tuple[Stage, ...] = STAGES
    policies: tuple[str, ...] = POLICIES
