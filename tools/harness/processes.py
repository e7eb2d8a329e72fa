"""Starts services of this project, each as a process of its own."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from services.process.children import Child, describe_exit

STOP_GRACE_S = 5.0
_POLL_S = 0.02


async def start_service(
    name: str, module: str, *flags: str, folder: Path, timeout_s: float
) -> tuple[Child, dict[str, Any]]:
    """Start `python -m module` with its log in `folder` and wait until it serves.

    The child, and its ready file: addresses, ports, pid. Raises `ChildFailed`; a process that does
    not come to serve has ended then.
    """
    ready = folder / f"{name}.ready"
    argv = [sys.executable, "-P", "-m", module, *flags, f"--ready-file={ready}"]
    child = await Child.spawn(name, argv, folder / f"{name}.log")
    try:
        deadline = time.monotonic() + timeout_s
        while not ready.exists():
            if child.exit_code is not None:
                raise child.failure(describe_exit(child.exit_code))
            if time.monotonic() > deadline:
                raise child.failure(f"did not serve within {timeout_s:g} s")
            await asyncio.sleep(_POLL_S)
        return child, json.loads(ready.read_text())
    except BaseException:
        await child.stop(STOP_GRACE_S)
        raise
