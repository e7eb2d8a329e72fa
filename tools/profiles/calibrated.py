"""`foretell profile calibrated`: what a predictor has learnt about its engine, as a profile."""

import asyncio

from foretell.latency.importers.linear_fit import fit_linear
from foretell.latency.linear import StepTimeModel
from foretell.latency.residuals import spread
from foretell.model import GpuProfile
from foretell.tools.follower import NothingKnown, snapshot_at
from foretell.tools.profiles.imports import ProfileError, of_engine

LEAST_STEPS = 1000
"""The fewest learnt steps for a profile: fewer show too little of the load."""


def calibrated_profile(predictor: str, name: str = "") -> GpuProfile:
    """A profile of the engine whose predictor is at an address: its limits, and six coefficients
    fitted to its step times. `name`: DEVICE/MODEL; "": calibrated/MODEL.

    Raises ProfileError, which says why there is none.
    """
    try:
        known = asyncio.run(snapshot_at(predictor))
    except NothingKnown as error:
        raise ProfileError(str(error)) from error
    if known.calibration_steps < LEAST_STEPS:
        raise ProfileError(
            f"the predictor at {predictor} has learnt from {known.calibration_steps} steps; "
            f"wait for {LEAST_STEPS} of the load that the profile is for"
        )
    config = known.config
    served = config.model_name.rstrip("/").rpartition("/")[2] or "model"
    profile = of_engine(
        config,
        name or f"calibrated/{served}",
        f"learnt by a predictor from {known.calibration_steps} steps of "
        f"{config.engine_version}, whose times it met within {spread(known.step_error, 1):.1%}",
    )
    return fit_linear(profile, StepTimeModel(known.step_time))
