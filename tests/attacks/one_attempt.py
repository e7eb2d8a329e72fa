"""A scheduler whose engines get one attempt, so that what a failure becomes is seen at once. Beside
it, in its own event loop, a client asks `/health` all the time: what that costs is what any other
client waits for, however much else the machine has to do."""

import asyncio
import json
import os
import time
from pathlib import Path

from costs import OTHERS

from foretell.placement import PlacementConfig
from foretell.services.process import runtime
from foretell.services.scheduler.__main__ import Tuning, prepared, serve

_EVERY_S = 0.005
_ASKED = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def port_of(ready: Path) -> int:
    """The port at which this process serves; 0: it does not yet."""
    told = json.loads(ready.read_text()) if ready.exists() else {"url": ":0"}
    return int(told["url"].rpartition(":")[2])


async def ask(ready: Path, told: int) -> None:
    """Ask again and again, and write what each answer took to the file `told`."""
    while not (port := port_of(ready)):  # noqa: ASYNC110 - nobody else would tell
        await asyncio.sleep(_EVERY_S)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        cpu_s, due_s = time.process_time(), time.monotonic() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        writer.write(_ASKED)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        # What went before it was due counts, too: a turn may have begun then.
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - due_s
        os.write(told, b"%.6f %.6f\n" % (cpu_s, wall_s))


async def main(stop: asyncio.Event) -> None:
    asking = asyncio.create_task(ask(ready, told))
    try:
        await serve(settings, stop, tuning=tuning)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


if __name__ == "__main__":
    settings = prepared()
    ready = Path(settings.ready_file)
    told = os.open(ready.with_name(OTHERS), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    tuning = Tuning(placement=PlacementConfig(max_attempts=1, instance_wait_s=0.0))
    runtime.run(main)
