"""Processes under measurement: starts emulated engines, and measures the CPU time of all others."""

import time
from collections.abc import Callable

import psutil  # type: ignore[import-untyped]

from foretell.tools.harness.services import Service, Services, running_services

__all__ = [
    "OthersClock",
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
    return f"ipc://{services.folder}/engine-{index}.ipc"


class OthersClock:
    """Measures how many cores the processes of others keep busy."""

    def __init__(self, ours_s: Callable[[], float]) -> None:
        """`ours_s` gives the CPU seconds of our processes, without this one."""
        self._ours_s = ours_s
        self._started = self._read()

    def cores(self) -> float:
        """Mean since this clock was made."""
        elapsed_s, others_s = (a - b for a, b in zip(self._read(), self._started, strict=True))
        return max(0.0, others_s / elapsed_s)

    def _read(self) -> tuple[float, float]:
        machine = psutil.cpu_times()
        idle_s = machine.idle + getattr(machine, "iowait", 0.0)
        # Linux counts guests' time in `user` as well.
        busy_s = sum(machine) - idle_s - getattr(machine, "guest", 0.0)
        return time.monotonic(), busy_s - time.process_time() - self._ours_s()
