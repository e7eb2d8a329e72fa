"""How long a step takes: from datasheets, from measurements, and from the engine's own steps."""

from foretell.latency.calibration import OnlineStepTime
from foretell.latency.devices import DEVICES, MODELS, device_spec, model_spec
from foretell.latency.linear import FEATURES, LinearStepTime, StepTimeModel, features
from foretell.latency.roofline import Efficiency, estimated_kv_blocks, roofline_step_time, sharded
from foretell.latency.tables import TabularStepTime, profile_step_time

__all__ = [
    "DEVICES",
    "FEATURES",
    "MODELS",
    "Efficiency",
    "LinearStepTime",
    "OnlineStepTime",
    "StepTimeModel",
    "TabularStepTime",
    "device_spec",
    "estimated_kv_blocks",
    "features",
    "model_spec",
    "profile_step_time",
    "roofline_step_time",
    "sharded",
]
