"""All that an engine publishes is received."""

import time
from pathlib import Path

from foretell.services.backend.publisher import SnapshotPublisher
from foretell.tools.live.tap import listening
from foretell.v1 import snapshot_pb2


def test_all_snapshots_are_heard(tmp_path: Path) -> None:
    endpoint = f"shm://{tmp_path}/snapshots"
    heard: list[int] = []
    with listening(endpoint) as messages:  # the engine may start later
        publisher = SnapshotPublisher(endpoint, heartbeat_s=0.01)
        publisher.publish(snapshot_pb2.EngineSnapshot(sequence=1))

        def hear_until(sequence: int) -> None:
            deadline = time.monotonic() + 10
            while sequence not in heard and time.monotonic() < deadline:
                found = map(snapshot_pb2.EngineSnapshot.FromString, messages())
                heard.extend(each.sequence for each in found)
                time.sleep(0.001)

        hear_until(1)  # it is repeated until there is a listener
        for sequence in range(2, 50):
            publisher.publish(snapshot_pb2.EngineSnapshot(sequence=sequence))
        hear_until(49)
    publisher.close()
    assert sorted(set(heard)) == list(range(1, 50))
