"""Frozen data types that all packages share. They compute derived fields, and nothing else."""

from foretell.model.batch import BatchShape, Step
from foretell.model.prediction import (
    NO_SLO,
    NO_TURN,
    OFFLINE_PRIORITY,
    LengthEstimate,
    Load,
    Prediction,
    RequestSpec,
    Slo,
    Turn,
)
from foretell.model.profile import Curve, DeviceSpec, GpuProfile, Grid, ModelSpec, StepTables
from foretell.model.snapshot import (
    MOST_DRAFT_TOKENS,
    CachedInput,
    EncoderInput,
    EngineConfig,
    EngineSnapshot,
    RequestState,
    RequestTable,
    SchedulerRule,
    content_number,
)

__all__ = [
    "MOST_DRAFT_TOKENS",
    "NO_SLO",
    "NO_TURN",
    "OFFLINE_PRIORITY",
    "BatchShape",
    "CachedInput",
    "Curve",
    "DeviceSpec",
    "EncoderInput",
    "EngineConfig",
    "SchedulerRule",
    "EngineSnapshot",
    "GpuProfile",
    "Grid",
    "LengthEstimate",
    "Load",
    "ModelSpec",
    "Prediction",
    "RequestSpec",
    "RequestState",
    "RequestTable",
    "Slo",
    "Step",
    "StepTables",
    "Turn",
    "content_number",
]
