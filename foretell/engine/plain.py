"""An engine's limits and step times as plain values, for JSON between processes of one release."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from foretell.kernel.step_time import StepTime
from foretell.model import EngineConfig


def plain_engine(config: EngineConfig, model: StepTime) -> dict[str, Any]:
    """What `engine_of` reads."""
    return {"config": asdict(config), "step_time": [each.tolist() for each in model]}


def engine_of(told: Mapping[str, Any]) -> tuple[EngineConfig, StepTime]:
    """Raises KeyError, TypeError or ValueError if these are not the values of an engine."""
    coefficients, values, layout = told["step_time"]
    model = StepTime(np.array(coefficients, float), np.array(values, float), np.array(layout))
    config = {**told["config"], "approximations": tuple(told["config"]["approximations"])}
    return EngineConfig(**config), model
