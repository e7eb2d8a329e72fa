"""The GPUs of this machine, as its driver reports them."""

import os
import shutil
import subprocess
from dataclasses import dataclass

_QUERY = "index,name,memory.total,driver_version,clocks.max.sm,power.limit"
_TIMEOUT_S = 20.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device."""

    index: str
    name: str
    memory_bytes: int
    driver: str
    clock_mhz: str = ""
    """Highest clock of its multiprocessors."""
    power_w: str = ""
    """Power limit."""


def find_gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that started processes may use; none without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        printed = subprocess.run(
            (program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return visible(parsed(printed), os.environ.get("CUDA_VISIBLE_DEVICES"))


def parsed(printed: str) -> tuple[Gpu, ...]:
    """The GPUs in what `nvidia-smi` printed, one on a line."""
    found = []
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 6 and cells[2].isdecimal():
            index, name, mib, driver, clock, power = cells
            found.append(Gpu(index, name, int(mib) * _MIB, driver, clock, power))
    return tuple(found)


def visible(gpus: tuple[Gpu, ...], chosen: str | None) -> tuple[Gpu, ...]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` lists; all if an entry is not an index."""
    if chosen is None:
        return gpus
    wanted = [each.strip() for each in chosen.split(",") if each.strip()]
    if not all(each.isdecimal() for each in wanted):
        return gpus
    by_index = {gpu.index: gpu for gpu in gpus}
    return tuple(by_index[each] for each in wanted if each in by_index)
