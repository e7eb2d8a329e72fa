"""Compiles the twin once, before a cluster's processes start: each of them would compile it."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Callable
from contextlib import suppress

_COMPILE = ("-m", "foretell.engine.warm")
_AT_ONCE_S = 4.0


async def compile_twin(stop: asyncio.Event, say: Callable[[str], None]) -> None:
    """Compile what is not compiled yet, until `stop`; `say` is told if that takes a while.

    What goes wrong here, the processes will tell of.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, *_COMPILE, stdout=DEVNULL, stderr=DEVNULL
    )
    compiled, stopped = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
    waits = {compiled, stopped}
    try:
        await asyncio.wait(waits, timeout=_AT_ONCE_S, return_when=asyncio.FIRST_COMPLETED)
        if not (compiled.done() or stopped.done()):
            say("compiling, which takes a minute or two, once after an installation")
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.gather(compiled, stopped, return_exceptions=True)
