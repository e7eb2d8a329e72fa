"""HTTP/1.1 without I/O: what is parsed, what is refused, and how little is held in memory."""

import tracemalloc

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.http1.bounds import Bounds, RemoteProtocolError
from foretell.http1.head import RequestHead
from foretell.http1.protocol import (
    TRANSITIONS,
    ConnectionState,
    LocalProtocolError,
    ProtocolStep,
    ServerProtocol,
)

HEAD = b"POST /a%20b?c=d HTTP/1.1\r\nHost: x\r\n"
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def told(
    protocol: ServerProtocol, *parts: bytes
) -> tuple[list[RequestHead], list[bytes], RemoteProtocolError | None]:
    """The heads and bodies read from `parts`, each answered at once; and the error, if any."""
    heads: list[RequestHead] = []
    bodies: list[bytes] = []
    for part in parts:
        protocol.receive(part)
        try:
            while (event := protocol.next_event()) is not None:
                if isinstance(event, RequestHead):
                    heads.append(event)
                    bodies.append(event.content or b"")
                    if event.content is not None:
                        protocol.answered()
                elif event:
                    bodies[-1] += event
                else:
                    protocol.answered()
        except RemoteProtocolError as error:
            return heads, bodies, error
    return heads, bodies, None


def split(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_requests_are_the_same_however_their_bytes_come(size: int) -> None:
    data = (
        b"\r\n\r\n" + HEAD + b"Content-Length: 0007\r\nX-A: 1\r\nx-a: 2\r\n\r\ncontent"
        b"GET http://h/health HTTP/1.1\r\nhost: h\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"
        + CHUNKED
        + b"3;a=b\r\nabc\r\n0002\r\nde\r\n0\r\nx: y\r\n\r\n"
        + b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    heads, bodies, error = told(ServerProtocol(), *split(data, size))
    assert error is None
    assert bodies == [b"content", b"", b"abcde", b""]
    assert [(each.method, each.path, each.query) for each in heads] == [
        ("POST", "/a b", "c=d"),
        ("GET", "/health", ""),
        ("POST", "/a b", "c=d"),
        ("GET", "/", ""),
    ]
    assert heads[0].headers == {"host": "x", "content-length": "0007", "x-a": "1"}
    assert [each.keep_alive for each in heads] == [True, True, True, False]


@given(
    st.lists(
        st.tuples(st.booleans(), st.binary(max_size=300), st.integers(1, 40)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 90),
)
def test_it_frames_as_h11_does(requests: list[tuple[bool, bytes, int]], size: int) -> None:
    """Bodies of both kinds arrive as h11's client sent them, however the bytes are cut."""
    data = b""
    for chunked, body, chunk in requests:
        client = h11.Connection(h11.CLIENT)
        framing = (
            ("transfer-encoding", "chunked") if chunked else ("content-length", str(len(body)))
        )
        head = h11.Request(method="POST", target="/", headers=[("host", "x"), framing])
        data += client.send(head) or b""
        for part in split(body, chunk):
            data += client.send(h11.Data(data=part)) or b""
        data += client.send(h11.EndOfMessage()) or b""
    _, bodies, error = told(ServerProtocol(), *split(data, size))
    assert error is None
    assert bodies == [body for _, body, _ in requests]


WRONG = [
    *(b"\x16\x03\x01", b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r\nhost x\r\n", b"G\x00T"),
    *(b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n"),
    b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n",
    *(HEAD + each + b"\r\n\r\n" for each in (b"Content-Length: -1", b"Content-Length: 1_0")),
    HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    *(HEAD + b"Transfer-Encoding: " + each + b"\r\n\r\n" for each in (b"gzip", b"gzip, chunked")),
    HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
    CHUNKED.replace(b"1.1", b"1.0"),
    *(CHUNKED + each for each in (b"Z", b"-1", b" 1", b"1 ", b"0x1", b"5\n", b"5\r\nabcdeX")),
    *(CHUNKED + each for each in (b"5\r\nabcde\n", b"1\r\na\r\nG", b"0\r\nno trailer", b"0\r\n:")),
    CHUNKED + b"1;\x00", CHUNKED + b"0\r\na: b\n",
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_no_http_is_refused_at_its_first_wrong_byte(wrong: bytes, size: int) -> None:
    _, _, error = told(ServerProtocol(), *split(wrong, size))
    assert error is not None
    assert error.status in (400, 405, 505)


def test_what_has_no_end_is_refused() -> None:
    bounds = Bounds(head_bytes=100, headers=4, chunk_extension_bytes=50, trailer_bytes=50)
    endless = (
        (431, b"", b"\r\n"),
        (431, b"GET /", b"a"),
        (431, b"GET / HTTP/1.1\r\nhost: ", b"a"),
        (431, b"GET / HTTP/1.1\r\n", b"a:\r\n"),
        (400, CHUNKED[:1] + CHUNKED[1:], b"1;a=b\r\nx\r\n"),
        (400, CHUNKED + b"1;", b"a"),
        (400, CHUNKED + b"0\r\n", b"a: b\r\n"),
        (400, CHUNKED + b"0\r\na: ", b"b"),
        (400, CHUNKED, b"0" * 17),
    )
    for status, begin, more in endless:
        for size in (1, 33):
            protocol = ServerProtocol(bounds)
            parts = [begin, *split(more * 2000, size)]
            _, _, error = told(protocol, *parts)
            assert error is not None, begin
            assert error.status == status, begin
            assert protocol.held_bytes == 0
            assert told(protocol, GET)[0] == []


def test_many_small_chunks_are_refused() -> None:
    _, _, error = told(ServerProtocol(), CHUNKED, b"1\r\na\r\n" * 100_000)
    assert error is not None
    assert error.status == 400
    _, bodies, error = told(ServerProtocol(), CHUNKED, b"10\r\n0123456789abcdef\r\n" * 9000)
    assert (error, len(bodies[0])) == (None, 9000 * 16)


def test_what_follows_a_request_waits_unread_until_it_is_answered() -> None:
    protocol = ServerProtocol()
    protocol.receive(GET + b"\x00 nonsense" + b"x" * 100_000)
    assert isinstance(protocol.next_event(), RequestHead)
    assert protocol.state is ConnectionState.ANSWERING
    for _ in range(3):
        assert protocol.next_event() is None
    assert protocol.is_full
    protocol.answered()
    with pytest.raises(RemoteProtocolError):
        protocol.next_event()
    assert (protocol.state, protocol.held_bytes) == (ConnectionState.CLOSING, 0)


def test_pipelined_requests_take_no_stack_and_no_memory_of_their_own() -> None:
    upgrade = GET.replace(b"\r\n\r\n", b"\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n")
    protocol = ServerProtocol()
    protocol.receive(upgrade * 5000)
    tracemalloc.start()
    try:
        heads = 0
        while protocol.next_event() is not None:
            heads += 1
            protocol.answered()
        assert heads == 5000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_body_that_is_none_is_still_answered_and_then_nothing_is_heard() -> None:
    protocol = ServerProtocol()
    _, _, error = told(protocol, CHUNKED + b"ZZ")
    assert error is not None
    assert protocol.state is ConnectionState.FAILED
    protocol.receive(GET)
    assert protocol.next_event() is None
    protocol.answered()
    assert protocol.state is ConnectionState.CLOSING


def test_steps_that_are_not_due_are_defects() -> None:
    for state in ConnectionState:
        for step in ProtocolStep:
            protocol = ServerProtocol()
            protocol.state = state
            if step in TRANSITIONS[state]:
                protocol._go(step)
                follows = TRANSITIONS[state][step]
                assert protocol.state is (
                    ConnectionState.CLOSING if follows is ConnectionState.DONE else follows
                )
            else:
                with pytest.raises(LocalProtocolError):
                    protocol._go(step)
    with pytest.raises(LocalProtocolError):
        ServerProtocol().answered()


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("method", [b"NONSENSE", b"PROPFIND", b"SETUP", b"get", b"GETS"])
def test_a_method_that_http_does_not_have_is_not_implemented(method: bytes, size: int) -> None:
    _, _, error = told(ServerProtocol(), *split(method + GET.removeprefix(b"GET"), size))
    assert error is not None
    assert error.status == 501
