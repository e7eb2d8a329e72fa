"""Listens to what an engine publishes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import zmq

from foretell.model import EngineSnapshot
from foretell.v1 import snapshot_pb2
from foretell.wire import snapshot_from_proto


@contextmanager
def listening(endpoint: str) -> Iterator[Callable[[], list[bytes]]]:
    """Yields a function that gives the messages which have come since its last call.

    ZMQ's thread receives and keeps all of them; nothing here runs when one comes.
    """
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
