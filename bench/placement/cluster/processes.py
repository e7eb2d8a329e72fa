"""Starts emulated engines with their predictors."""

import asyncio
from dataclasses import dataclass

from bench.processes import Services, feed, start_emulated, start_predictor
from foretell.tools.harness.schedulers import Engines

_START_TIMEOUT_S = 240.0  # two dozen processes at once, perhaps on a machine of two cores


@dataclass(frozen=True, slots=True)
class Setup:
    """The engines."""

    instances: int
    profile: str
    speedup: float
    """Speed of the engines' clocks; below 1 they are slower than the profile."""


async def start_engines(services: Services, setup: Setup) -> Engines:
    """Start all at once, each with its index as the seed of its noise."""
    count = range(setup.instances)
    flags = ("--log-level=warning",)
    started = await asyncio.gather(
        *(
            start_emulated(
                services,
                index,
                setup.profile,
                f"--speedup={setup.speedup:g}",
                *flags,
                start_timeout_s=_START_TIMEOUT_S,
            )
            for index in count
        ),
        *(
            start_predictor(
                services, index, setup.profile, *flags, start_timeout_s=_START_TIMEOUT_S
            )
            for index in count
        ),
    )
    engines, predictors = started[: setup.instances], started[setup.instances :]
    return Engines(
        engines[0].facts["model_name"],
        tuple(engine.facts["url"] for engine in engines),
        tuple(predictor.facts["address"] for predictor in predictors),
        tuple(feed(services, index) for index in count),
    )
