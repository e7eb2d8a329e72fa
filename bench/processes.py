"""Processes under measurement: starts emulated engines and predictors."""

from foretell.tools.harness.services import Service, Services, running_services

__all__ = [
    "Service",
    "Services",
    "feed",
    "running_services",
    "start_emulated",
    "start_predictor",
]


async def start_emulated(
    services: Services, index: int, profile: str, *flags: str, start_timeout_s: float
) -> Service:
    """An emulated engine, `engine-INDEX`, that publishes to `feed`."""
    return await services.start(
        f"engine-{index}",
        "foretell.services.backend.emulator",
        f"--name=engine-{index}",
        f"--snapshot-endpoint={feed(services, index)}",
        f"--profile={profile}",
        *flags,
        start_timeout_s=start_timeout_s,
    )


async def start_predictor(
    services: Services, index: int, profile: str, *flags: str, start_timeout_s: float
) -> Service:
    """The predictor of `engine-INDEX`."""
    return await services.start(
        f"predictor-{index}",
        "foretell.services.predictor",
        f"--name=engine-{index}",
        f"--listen=unix:{services.folder}/predictor-{index}.sock",
        f"--snapshot-endpoint={feed(services, index)}",
        f"--profile={profile}",
        *flags,
        start_timeout_s=start_timeout_s,
    )


def feed(services: Services, index: int) -> str:
    """Where `engine-INDEX` publishes its snapshots."""
    return f"shm://{services.folder}/engine-{index}.snapshots"
