"""Listens to the engine's snapshots and learns from its steps."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import zmq
from google.protobuf.message import DecodeError

from foretell import wire
from foretell.model import EngineSnapshot
from foretell.services.process.memory_log import SHARED_MEMORY, LogReader
from foretell.v1 import snapshot_pb2

logger = logging.getLogger(__name__)

_MAX_SNAPSHOT_BYTES = 16 << 20
_AT_ONCE = 16  # snapshots, before anything else is looked after
_LOG_EVERY = 1000  # malformed messages per log line
# Between two looks into shared memory: while the engine makes steps, and when it has not for long.
_LOOK_EVERY_S, _LOOK_SELDOM_S, _LONG_S = 0.002, 0.02, 0.5


def subscriber_to(endpoint: str) -> "SnapshotSubscriber | MemorySubscriber":
    """A subscriber to what is published at `endpoint`."""
    if endpoint.startswith(SHARED_MEMORY):
        return MemorySubscriber(Path(endpoint.removeprefix(SHARED_MEMORY)))
    return SnapshotSubscriber(endpoint)


class _Subscriber:
    """Decodes what is heard, and counts what is none."""

    def __init__(self) -> None:
        self.malformed = 0
        self.unpredicted: Callable[[str], None] = lambda reason: None
        """Is told why an engine tells nothing, again and again as long as it does not."""

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


class MemorySubscriber(_Subscriber):
    """Looks into the file in which an engine of the same machine logs its snapshots.

    Nobody wakes it, so it looks again and again; an engine's step takes longer than that.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._log = LogReader(path)

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

    def close(self) -> None:
        self._log.close()


class SnapshotSubscriber(_Subscriber):
    """A ZMQ SUB socket; ZMQ itself reconnects when the engine restarts."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_SNAPSHOT_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.connect(endpoint)

    async def run(self, hear: Callable[[EngineSnapshot], None]) -> None:
        """Call `hear` with every well-formed snapshot, until cancelled."""
        loop = asyncio.get_running_loop()
        # By hand: zmq.asyncio's futures take longer than what is heard.
        failed: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            try:
                if self._hear_some(hear) and not failed.done():
                    loop.call_soon(read)
            except Exception as error:  # a defect of ours, which ends the process
                if not failed.done():
                    failed.set_exception(error)

        loop.add_reader(self._socket.FD, read)
        try:
            read()
            await failed
        finally:
            failed.cancel()
            loop.remove_reader(self._socket.FD)

    def _hear_some(self, hear: Callable[[EngineSnapshot], None]) -> bool:
        """Whether something may be left: the descriptor tells of more only once nothing is."""
        try:
            for _ in range(_AT_ONCE):
                self._hear(self._socket.recv(zmq.NOBLOCK), hear)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        self._socket.close()
        self._context.term()


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel `task` and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
