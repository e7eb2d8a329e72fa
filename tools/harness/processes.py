"""Starts services of this project, each as a process of its own."""

import json
import sys
from pathlib import Path
from typing import Any

from foretell.services.process.children import Child
from foretell.services.process.keeper import Program, start

STOP_GRACE_S = 5.0


async def start_service(
    name: str, module: str, *flags: str, folder: Path, timeout_s: float
) -> tuple[Child, dict[str, Any]]:
    """Start `python -m module` with its log in `folder` and wait until it serves.

    The child, and its ready file: addresses, ports, pid. Raises `ChildFailed`; a process that does
    not come to serve has ended then.
    """
    ready = folder / f"{name}.ready"
    argv = (sys.executable, "-P", "-m", module, *flags, f"--ready-file={ready}")
    child = await start(Program(name, argv, folder / f"{name}.log", ready, timeout_s))
    return child, json.loads(ready.read_text())
