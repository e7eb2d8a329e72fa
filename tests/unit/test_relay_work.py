"""The cost of a read from an engine depends on what it brought, not on what is held."""

import tracemalloc
from collections.abc import Callable

import pytest

from foretell.answer.continuation import Progress
from foretell.answer.framing import WholeFraming
from foretell.answer.stream import StreamFraming
from foretell.services.scheduler.relay.held import MOST_BYTES, HeldStream, HeldStreams

FIRST = b'data: {"id":"a","choices":[{"index":0,"text":"x","token_ids":[1]}]}\n\n'
OPEN = b'data: {"id":"a","choices":[{"index":0,"text":"'
HELD_BYTES = 900_000


def allocated_bytes(do: Callable[[], object]) -> int:
    """The peak of allocated bytes during a call."""
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "framing",
    [StreamFraming(Progress()), StreamFraming(), WholeFraming()],
    ids=lambda framing: type(framing).__name__,
)
def test_a_byte_costs_no_copy_of_what_is_held(framing: StreamFraming | WholeFraming) -> None:
    framing.feed(FIRST)
    framing.feed(OPEN + b"x" * HELD_BYTES)
    for _ in range(20):  # the buffer may grow at times, but not at each read
        if allocated_bytes(lambda: framing.feed(b"x")) < HELD_BYTES // 10:
            return
    pytest.fail("each byte took as much as all before it")


class Client:
    """An exchange, as far as a held stream needs one."""

    def __init__(self) -> None:
        self.written = 0
        self.left = False
        self.on_left: Callable[[], None] | None = None

    def start(self, *_: object, **__: object) -> None: ...

    def write(self, data: bytes) -> None:
        self.written += len(data)


def test_an_event_without_end_is_neither_copied_nor_held_for_ever() -> None:
    streams, client = HeldStreams(), Client()
    stream = streams.hold(client, "")  # type: ignore[arg-type]
    assert isinstance(stream, HeldStream)
    stream.start(200, [(b"content-type", b"text/event-stream")])
    stream.write(FIRST)
    line = b"data: " + b"x" * 1000 + b"\n"
    for _ in range(HELD_BYTES // len(line)):
        stream.write(line)
    assert allocated_bytes(lambda: stream.write(b": \n")) < HELD_BYTES // 10
    for _ in range(3000):
        stream.write(line)
    assert client.written > 3000 * len(line)
    assert allocated_bytes(lambda: stream.write(line)) < MOST_BYTES // 10
    assert not streams._streams  # no client can come back to it
