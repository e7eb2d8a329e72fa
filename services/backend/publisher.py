"""Publishes engine snapshots: into shared memory, or over ZMQ. For the plugin and the emulator."""

import threading
import time
from pathlib import Path
from typing import Protocol

import zmq

from foretell.services.process.memory_log import SHARED_MEMORY, LogWriter
from foretell.v1 import snapshot_pb2

HEARTBEAT_S = 0.5
"""An unchanged snapshot is repeated after this long."""
_SEND_QUEUE_LENGTH = 64  # snapshots; a slow reader loses old ones, it never slows the engine


class _Sender(Protocol):
    def write(self, rest: bytes, base: bytes) -> None: ...

    def close(self) -> None: ...


class SnapshotPublisher:
    """Sends snapshots, and has a thread that repeats the last one when nothing new is said.

    The repetition tells a predictor that joins late where the engine stands, and everyone that
    the engine's process is alive. Publishing never blocks.
    """

    def __init__(self, endpoint: str, heartbeat_s: float = HEARTBEAT_S) -> None:
        """`endpoint` is `shm://` and the path of a file, or one of ZMQ's."""
        for scheme in ("ipc://", SHARED_MEMORY):
            if endpoint.startswith(scheme):  # whoever of several processes is first makes it
                folder = Path(endpoint.removeprefix(scheme)).parent
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._heartbeat_s = heartbeat_s
        self._sender: _Sender
        if endpoint.startswith(SHARED_MEMORY):
            self._sender = LogWriter(Path(endpoint.removeprefix(SHARED_MEMORY)))
        else:
            self._sender = _ZmqSender(endpoint)
        self._lock = threading.Lock()
        self._last: tuple[bytes, bytes] | None = None
        self._sent_s = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="foretell-heartbeat", daemon=True)
        self._thread.start()

    def publish(self, snapshot: snapshot_pb2.EngineSnapshot) -> None:
        """Send `snapshot` now. It is taken apart: its completed steps are told once."""
        once = snapshot_pb2.EngineSnapshot(completed_steps=snapshot.completed_steps)
        snapshot.ClearField("completed_steps")
        self.send(snapshot.SerializeToString(), b"", once.SerializeToString())

    def send(self, base: bytes, rest: bytes, once: bytes) -> None:
        """Send a snapshot now: `base`, `rest` and `once` are parts of it, serialized.

        To pass the same object as `base` again costs least. What `once` holds is left out where
        the snapshot is repeated.
        """
        with self._lock:
            self._last, self._sent_s = (rest, base), time.monotonic()
            self._sender.write(rest + once, base)

    def close(self) -> None:
        """Stop repeating and release the endpoint."""
        self._closed.set()
        self._thread.join()
        self._sender.close()

    def _repeat(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            with self._lock:
                if self._last is None or time.monotonic() - self._sent_s < self._heartbeat_s:
                    continue
                # Of a field that is there twice, the last one counts.
                now = snapshot_pb2.EngineSnapshot(published_unix_s=time.time())
                self._sent_s = time.monotonic()
                rest, base = self._last
                self._sender.write(rest + now.SerializeToString(), base)


class _ZmqSender:
    """A PUB socket."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, _SEND_QUEUE_LENGTH)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError:
            self._socket.close()
            self._context.term()
            raise

    def write(self, rest: bytes, base: bytes) -> None:
        self._socket.send(base + rest, zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()
        self._context.term()
