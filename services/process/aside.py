"""Runs long computations in a process of their own, with a timeout: they block no event loop."""

import asyncio
import os
import sys
from contextlib import suppress

from foretell.services.process.runtime import PARENT_PID


class AsideFailed(Exception):
    """The process ended with a code other than 0, or without output."""


async def computed_aside(module: str, asked: bytes, limit_s: float) -> bytes:
    """Return what `python -m module` writes, given `asked`. The module must call `die_with_parent`.

    Raises TimeoutError after `limit_s`, and `AsideFailed`; the process has ended in every case.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, PARENT_PID: str(os.getpid())},
    )
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate(asked)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode != 0 or not output:
        raise AsideFailed(f"{module} ended with code {process.returncode}")
    return output
