"""What `foretell check` is asked to do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Stage = Literal["attach", "cost", "truth", "cluster", "beside"]
STAGES: tuple[Stage, ...] = ("attach", "cost", "truth", "cluster", "beside")
POLICIES = ("slo", "least_outstanding", "round_robin", "predicted_latency")
"""The default, two that predict nothing, and the Block paper's."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Everything that a run depends on."""

    output: Path
    """Folder of results; made if missing."""
    model: str = ""
    """Folder or name of a model with weights; empty: `dummy`."""
    dummy: str = ""
    """One of `dummies.SHAPES`; empty: the smallest that suits the machine."""
    minutes: float = 10.0
    """The whole budget, from the start to the page."""
    engines: int = 0
    """Number of engines; 0: one a GPU, and as many as fit where there is one GPU."""
    engine_args: str = ""
    """Further flags of vLLM for every engine."""
    python: str = ""
    """Python with vLLM; empty: this one."""
    profile: str = ""
    """GPU profile that predictors start from; empty: none."""
    stages: tuple[Stage, ...] = STAGES
    policies: tuple[str, ...] = POLICIES
    ttft_target_s: float = 1.0
    """A request counts as good whose TTFT and time per token are within this and the next."""
    tpot_target_s: float = 0.1
    seed: int = 1
