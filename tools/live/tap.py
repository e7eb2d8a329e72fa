"""Listens to what an engine publishes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import zmq

from foretell.model import EngineSnapshot
from foretell.services.process.memory_log import SHARED_MEMORY, LogReader
from foretell.v1 import snapshot_pb2
from foretell.wire import snapshot_from_proto

_LOOK_EVERY_S = 0.002

Heard = Callable[[], list[bytes]]
"""Gives the messages which have come since its last call."""


def listening(endpoint: str) -> AbstractContextManager[Heard]:
    """Listen to what is published at `endpoint`, as `SnapshotPublisher` takes it."""
    if endpoint.startswith(SHARED_MEMORY):
        return _reading(Path(endpoint.removeprefix(SHARED_MEMORY)))
    return _subscribing(endpoint)


@contextmanager
def _reading(path: Path) -> Iterator[Heard]:
    """From shared memory, by a thread: what nobody has read is overwritten in the end."""
    reader, ended = LogReader(path), Event()
    messages: deque[bytes] = deque()

    def read() -> None:
        while not ended.wait(_LOOK_EVERY_S):
            reader.reopen()  # the file may come later, or be made anew
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


@contextmanager
def _subscribing(endpoint: str) -> Iterator[Heard]:
    """By ZMQ, whose thread receives and keeps all of them; nothing here runs when one comes."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(endpoint)

        def heard() -> list[bytes]:
            messages = []
            with suppress(zmq.Again):
                while True:
                    messages.append(socket.recv(zmq.NOBLOCK))
            return messages

        yield heard


def decoded(messages: Iterable[bytes]) -> list[EngineSnapshot]:
    """The snapshots in these messages."""
    return [
        snapshot_from_proto(snapshot_pb2.EngineSnapshot.FromString(message)) for message in messages
    ]
