"""Describes the machine on which a result was measured."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe_machine(*packages: str) -> dict[str, object]:
    """This machine and the versions of `packages` ("absent" where one is not installed).

    `cores` are those this process may use, `memory_gib` is what the machine has and `load_1min`
    the load average at the time of the call: call it before the measurement starts.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
