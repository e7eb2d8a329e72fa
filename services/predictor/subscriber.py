"""Reads the engine's snapshots from shared memory."""

import asyncio
import logging
import time
from collections.abc import Callable

from google.protobuf.message import DecodeError

from foretell import wire
from foretell.model import EngineSnapshot
from foretell.services.process.memory_log import LogReader, path_of
from foretell.v1 import snapshot_pb2

logger = logging.getLogger(__name__)

_AT_ONCE = 16  # most snapshots taken in before the event loop runs other tasks
_LOG_EVERY = 1000  # malformed messages per log line
# Pauses between reads of shared memory: while snapshots come, and after `_LONG_S` without any.
_LOOK_EVERY_S, _LOOK_SELDOM_S, _LONG_S = 0.002, 0.02, 0.5


class SnapshotSubscriber:
    """Reads and decodes the snapshots that an engine on the same machine writes to shared memory,
    and counts malformed ones.

    It polls, because the engine wakes no reader; a step takes longer than the pause between reads.
    """

    def __init__(self, endpoint: str) -> None:
        """Raises ValueError for a malformed endpoint."""
        self._log = LogReader(path_of(endpoint))
        self.malformed = 0
        self.unpredicted: Callable[[str], None] = lambda reason: None
        """Called with the reason, repeatedly, while the engine publishes no snapshots."""

    async def run(self, hear: Callable[[EngineSnapshot], None]) -> None:
        """Call `hear` with every well-formed snapshot, until cancelled."""
        heard_s = looked_s = -_LONG_S
        while True:
            now_s = time.monotonic()
            if self._hear_some(hear):
                heard_s = now_s
            elif now_s - max(heard_s, looked_s) >= _LONG_S:
                self._log.reopen()
                looked_s = now_s
            quiet = now_s - heard_s >= _LONG_S
            await asyncio.sleep(_LOOK_SELDOM_S if quiet else _LOOK_EVERY_S)

    def _hear_some(self, hear: Callable[[EngineSnapshot], None]) -> bool:
        heard = False
        for _ in range(_AT_ONCE):
            payload = self._log.read()
            if payload is None:
                break
            heard = True
            self._hear(payload, hear)
        return heard

    def _hear(self, payload: bytes, hear: Callable[[EngineSnapshot], None]) -> None:
        try:
            message = snapshot_pb2.EngineSnapshot.FromString(payload)
            if message.unpredicted:
                self.unpredicted(wire.checked_reason(message.unpredicted))
                return
            snapshot = wire.snapshot_from_proto(message)
        except (DecodeError, wire.WireError) as error:
            if self.malformed % _LOG_EVERY == 0:
                logger.warning("dropped a malformed snapshot: %s", error)
            self.malformed += 1
            return
        hear(snapshot)

    def close(self) -> None:
        self._log.close()


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel `task` and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
