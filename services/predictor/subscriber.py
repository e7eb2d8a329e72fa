"""Listens to the engine's snapshots and learns from its steps."""

import asyncio
import logging
from collections.abc import Callable

import zmq
from google.protobuf.message import DecodeError

from foretell import wire
from foretell.model import EngineSnapshot
from foretell.v1 import snapshot_pb2

logger = logging.getLogger(__name__)

_MAX_SNAPSHOT_BYTES = 16 << 20
_AT_ONCE = 16  # snapshots, before anything else is looked after
_LOG_EVERY = 1000  # malformed messages per log line


class SnapshotSubscriber:
    """A ZMQ SUB socket; ZMQ itself reconnects when the engine restarts."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_SNAPSHOT_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.connect(endpoint)
        self.malformed = 0

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

    def _hear(self, payload: bytes, hear: Callable[[EngineSnapshot], None]) -> None:
        try:
            message = snapshot_pb2.EngineSnapshot.FromString(payload)
            snapshot = wire.snapshot_from_proto(message)
        except (DecodeError, wire.WireError) as error:
            if self.malformed % _LOG_EVERY == 0:
                logger.warning("dropped a malformed snapshot: %s", error)
            self.malformed += 1
            return
        hear(snapshot)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel `task` and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
