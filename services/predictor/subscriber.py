"""Listens to the engine's snapshots and learns from its steps."""

import asyncio
import logging
from collections.abc import Callable

import zmq
import zmq.asyncio
from google.protobuf.message import DecodeError

from foretell import wire
from foretell.model import EngineSnapshot
from foretell.v1 import snapshot_pb2

logger = logging.getLogger(__name__)

_MAX_SNAPSHOT_BYTES = 16 << 20
_LOG_EVERY = 1000  # malformed messages per log line


class SnapshotSubscriber:
    """A ZMQ SUB socket; ZMQ itself reconnects when the engine restarts."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_SNAPSHOT_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.connect(endpoint)
        self.malformed = 0

    async def run(self, hear: Callable[[EngineSnapshot], None]) -> None:
        """Call `hear` with every well-formed snapshot, until cancelled."""
        while True:
            payload = await self._socket.recv()
            try:
                message = snapshot_pb2.EngineSnapshot.FromString(payload)
                snapshot = wire.snapshot_from_proto(message)
            except (DecodeError, wire.WireError) as error:
                if self.malformed % _LOG_EVERY == 0:
                    logger.warning("dropped a malformed snapshot: %s", error)
                self.malformed += 1
                continue
            hear(snapshot)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel `task` and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
