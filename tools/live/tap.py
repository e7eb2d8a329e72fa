"""Listens to what an engine publishes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from foretell.model import EngineSnapshot
from foretell.services.process.memory_log import LogReader, path_of
from foretell.v1 import snapshot_pb2
from foretell.wire import snapshot_from_proto

_LOOK_EVERY_S = 0.002

Heard = Callable[[], list[bytes]]
"""Returns the messages that have come since its last call."""


@contextmanager
def listening(endpoint: str) -> Iterator[Heard]:
    """Listen to what is published at `endpoint`, which is written as for `SnapshotPublisher`.

    A thread reads, because unread messages are overwritten after a while.
    """
    reader, ended = LogReader(path_of(endpoint)), Event()
    messages: deque[bytes] = deque()

    def read() -> None:
        while not ended.wait(_LOOK_EVERY_S):
            reader.reopen()  # the file may be created later, or replaced
            while (message := reader.read()) is not None:
                messages.append(message)

    thread = Thread(target=read, name="snapshots", daemon=True)
    thread.start()
    try:
        yield lambda: [messages.popleft() for _ in range(len(messages))]
    finally:
        ended.set()
        thread.join()
        reader.close()


def decoded(messages: Iterable[bytes]) -> list[EngineSnapshot]:
    """The snapshots in these messages."""
    return [
        snapshot_from_proto(snapshot_pb2.EngineSnapshot.FromString(message)) for message in messages
    ]
