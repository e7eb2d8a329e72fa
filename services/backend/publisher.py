"""Publishes engine snapshots into shared memory, for the plugin and the emulator."""

import threading
import time

from foretell.services.process.memory_log import LogWriter, path_of
from foretell.v1 import snapshot_pb2

HEARTBEAT_S = 0.5
"""An unchanged snapshot is repeated after this long."""


class SnapshotPublisher:
    """Sends snapshots; a thread repeats the last one while there is no new one.

    The repetition gives the engine's state to a predictor that starts late, and shows that the
    engine's process is alive. Publishing never blocks.
    """

    def __init__(self, endpoint: str, heartbeat_s: float = HEARTBEAT_S) -> None:
        """`endpoint` is `shm://` and the path of a file; ValueError where it is not."""
        path = path_of(endpoint)  # the first of several processes makes its folder
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._heartbeat_s = heartbeat_s
        self._log = LogWriter(path)
        self._lock = threading.Lock()
        self._last: tuple[bytes, bytes] | None = None
        self._sent_s = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="foretell-heartbeat", daemon=True)
        self._thread.start()

    def publish(self, snapshot: snapshot_pb2.EngineSnapshot) -> None:
        """Send `snapshot` now, and clear its completed steps, which are not to be repeated."""
        once = snapshot_pb2.EngineSnapshot(completed_steps=snapshot.completed_steps)
        snapshot.ClearField("completed_steps")
        self.send(snapshot.SerializeToString(), b"", once.SerializeToString())

    def send(self, base: bytes, rest: bytes, once: bytes) -> None:
        """Send a snapshot now: `base`, `rest` and `once` are parts of it, serialized.

        Passing the same `base` object again costs least. Repetitions leave `once` out.
        """
        with self._lock:
            self._last, self._sent_s = (rest, base), time.monotonic()
            self._log.write(rest + once, base)

    def close(self) -> None:
        """Stop repeating and release the endpoint."""
        self._closed.set()
        self._thread.join()
        self._log.close()

    def _repeat(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            with self._lock:
                if self._last is None or time.monotonic() - self._sent_s < self._heartbeat_s:
                    continue
                # If a field occurs twice, protobuf takes the last one.
                now = snapshot_pb2.EngineSnapshot(published_unix_s=time.time())
                self._sent_s = time.monotonic()
                rest, base = self._last
                self._log.write(rest + now.SerializeToString(), base)
