"""A scheduler that makes one attempt per request, so that every failure is visible at once.
A client in its own event loop asks `/health` all the time: its costs show what any other client
waits for, however busy the machine is."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from costs import OTHERS

from foretell.placement import PlacementConfig
from foretell.services.process import runtime
from foretell.services.scheduler.__main__ import SchedulerTuning, prepared, serve

_EVERY_S = 0.005
_ASKED = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def facts_of(ready: Path) -> dict[str, str]:
    """The ready file of this process; empty before it serves."""
    facts: dict[str, str] = json.loads(ready.read_text()) if ready.exists() else {}
    return facts


async def ask(ready: Path, told: int) -> None:
    """Ask this process repeatedly once it is ready, and write the costs of each answer to the file
    descriptor `told`."""
    while not (facts := facts_of(ready)):  # noqa: ASYNC110 - nobody else would tell
        await asyncio.sleep(_EVERY_S)
    if "url" in facts:
        connecting = asyncio.open_connection("127.0.0.1", int(facts["url"].rpartition(":")[2]))
    else:
        connecting = asyncio.open_unix_connection(facts["address"].removeprefix("unix:"))
    reader, writer = await connecting
    while True:
        cpu_s, due_s = time.process_time(), time.monotonic() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        writer.write(_ASKED)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        # CPU time before the request was due counts, too: a long turn may have begun then.
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - due_s
        os.write(told, b"%.6f %.6f\n" % (cpu_s, wall_s))


def run(serve: Callable[[asyncio.Event], Awaitable[None]], ready_file: str) -> None:
    """Serve, while the client `ask` runs in the same event loop."""

    ready = Path(ready_file)
    told = os.open(ready.with_name(OTHERS), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def main(stop: asyncio.Event) -> None:
        asking = asyncio.create_task(ask(ready, told))
        try:
            await serve(stop)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    runtime.run(main)


if __name__ == "__main__":
    settings = prepared()
    tuning = SchedulerTuning(placement=PlacementConfig(max_attempts=1, instance_wait_s=0.0))
    run(partial(serve, settings, tuning=tuning), settings.ready_file)
