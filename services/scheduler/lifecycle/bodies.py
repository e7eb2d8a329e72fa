"""Reads long bodies in parts, so that other requests are not held up."""

import asyncio
import gc
from typing import Any

from foretell.openai.parsing import values_of
from foretell.openai.shortened import Cutter, Short


async def shortened(body: bytes) -> Short:
    """What placement reads of a long body. `Cutter` scans it in parts. Raises `ApiError` where that
    is too much."""
    cutter = Cutter(body)
    is_whole = False
    while not is_whole:
        is_whole = cutter.go_on()
        await asyncio.sleep(0)  # let other tasks run
    return cutter.short()


async def long_values(body: bytes) -> dict[str, Any]:
    """The values that placement reads of a long body; raises `ApiError`."""
    short = await shortened(body)
    gc.disable()  # it would scan the new objects again and again
    try:
        return values_of(short)
    finally:
        gc.enable()
