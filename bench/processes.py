"""Starts emulated engines and predictors, and measures the CPU time of processes."""

from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from foretell.services.backend.commands import snapshot_endpoint
from foretell.tools.harness.services import Service, Services


async def start_emulated(
    services: Services, index: int, profile: str, *flags: str, start_timeout_s: float
) -> Service:
    """Start an emulated engine, `engine-INDEX`, that publishes to its predictor."""
    return await services.start(
        f"engine-{index}",
        "foretell.services.backend.emulator",
        f"--name=engine-{index}",
        f"--snapshot-endpoint={snapshot_endpoint(services.folder, f'engine-{index}')}",
        f"--profile={profile}",
        *flags,
        start_timeout_s=start_timeout_s,
    )


async def start_predictor(
    services: Services, index: int, profile: str, *flags: str, start_timeout_s: float
) -> Service:
    """Start the predictor of `engine-INDEX`."""
    return await services.start(
        f"predictor-{index}",
        "foretell.services.predictor",
        f"--name=engine-{index}",
        f"--listen=unix:{services.folder}/predictor-{index}.sock",
        f"--snapshot-endpoint={snapshot_endpoint(services.folder, f'engine-{index}')}",
        f"--profile={profile}",
        *flags,
        start_timeout_s=start_timeout_s,
    )


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of all threads, to the nanosecond: `cpu_times` counts hundredths of a second,
    too coarse for a dozen processes over a few seconds. RuntimeError if the process has ended."""
    if not process.is_running():
        raise RuntimeError(f"process {process.pid} has ended meanwhile; its log tells why")
    total_ns = 0
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it has just ended
            total_ns += int((thread / "schedstat").read_text().split()[0])
    return 1e-9 * total_ns
