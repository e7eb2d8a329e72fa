"""Publishes engine snapshots over ZMQ. Shared by the vLLM plugin and the emulated engine."""

import threading
import time
from pathlib import Path

import zmq

from foretell.v1 import snapshot_pb2

_SEND_QUEUE_LENGTH = 64  # snapshots; a slow reader loses old ones, it never slows the engine


class SnapshotPublisher:
    """A PUB socket plus a thread that repeats the last snapshot when nothing new is said.

    The repetition tells a predictor that joins late where the engine stands, and everyone that
    the engine's process is alive. `publish` never blocks.
    """

    def __init__(self, endpoint: str, heartbeat_s: float) -> None:
        if endpoint.startswith("ipc://"):  # whoever of several processes is first makes the folder
            folder = Path(endpoint.removeprefix("ipc://")).parent
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._heartbeat_s = heartbeat_s
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
        self._lock = threading.Lock()
        self._last: snapshot_pb2.EngineSnapshot | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="foretell-heartbeat", daemon=True)
        self._thread.start()

    def publish(self, snapshot: snapshot_pb2.EngineSnapshot) -> None:
        """Send `snapshot` now. The publisher keeps it: do not change it afterwards."""
        payload = snapshot.SerializeToString()
        with self._lock:
            self._last = snapshot
            self._send(payload)

    def close(self) -> None:
        """Stop repeating and release the endpoint."""
        self._closed.set()
        self._thread.join()
        self._socket.close()
        self._context.term()

    def _send(self, payload: bytes) -> None:
        self._socket.send(payload, zmq.NOBLOCK)

    def _repeat(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            with self._lock:
                last = self._last
                if last is None or time.time() - last.published_unix_s < self._heartbeat_s:
                    continue
                last.published_unix_s = time.time()
                last.ClearField("completed_steps")  # already told once
                self._send(last.SerializeToString())
