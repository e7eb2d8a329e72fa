"""Engines' answers: no client may get more than the answer to its own request."""

from vectors import Answer, Vector

FRAMING = "RFC 9112, section 6.3"
BEHIND = "RFC 9112, section 9.2; response queue poisoning (Kettle, 2022)"
JSON = b'{"id":"1","object":"text_completion","choices":[{"index":0,"text":"x"}]}'
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
COUNTED = OK + b"content-length: %d\r\n\r\n" % len(JSON) + JSON
CHUNK = b"%x\r\n%b\r\n" % (len(JSON), JSON)
CODED = OK + b"transfer-encoding: chunked\r\n\r\n"
CHUNKED = CODED + CHUNK + b"0\r\n\r\n"
EVENT = b'data: {"id":"1","choices":[{"index":0,"text":"x"}]}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FAILED = (502, 503)
POISON = (
    b"HTTP/1.1 418 I'm a teapot\r\nx-poison: 1\r\ncontent-type: text/plain\r\n"
    b"content-length: 6\r\n\r\npoison"
)
_SEEN = (b"418", b"poison")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def bad(name: str, *sent: bytes, source: str = FRAMING, closes: bool = False) -> Answer:
    """An invalid answer, for which the client gets an error from the scheduler."""
    return Answer(name, source, sent, FAILED, then_closes=closes, never=_SEEN)


_BEHIND = {
    "an answer": POISON,
    "half an answer": POISON[:20],
    "a line end": b"\r\n",
    "LF": b"\n",
    "text": b"poison",
    "a last chunk": b"0\r\n\r\n",
    "an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n",
    "NUL": b"\x00",
}
_ANSWERS = {"a length": COUNTED, "chunks": CHUNKED}

VECTORS: list[Vector] = [
    Answer("good: a length", FRAMING, (COUNTED,), (200,), body=JSON, reused=True),
    Answer("good: chunks", FRAMING, (CHUNKED,), (200,), body=JSON, reused=True),
    Answer(
        "good: until it closes",
        FRAMING,
        (OK + b"\r\n" + JSON,),
        (200,),
        then_closes=True,
        body=JSON,
        reused=False,
    ),
    Answer(
        "good: HTTP/1.0",
        FRAMING,
        (COUNTED.replace(b"1.1", b"1.0"),),
        (200,),
        body=JSON,
        reused=False,
    ),
    Answer(
        "good: byte by byte", FRAMING, tuple(bytes([each]) for each in CHUNKED), (200,), body=JSON
    ),
    Answer(
        "good: an interim answer before",
        "RFC 9110, section 15.2",
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + COUNTED,),
        (200,),
        body=JSON,
        never=(b"link",),
    ),
    *(
        Answer(
            f"behind {kind}, in the same read: {name}",
            BEHIND,
            (answer + data,),
            (200,),
            body=JSON,
            never=_SEEN,
            reused=False,
        )
        for kind, answer in _ANSWERS.items()
        for name, data in _BEHIND.items()
    ),
    *(
        Answer(
            f"behind {kind}, later: {name}",
            BEHIND,
            (answer, data),
            (200,),
            body=JSON,
            never=_SEEN,
            reused=False,
        )
        for kind, answer in _ANSWERS.items()
        for name, data in _BEHIND.items()
    ),
    Answer(
        "trailers",
        "RFC 9110, section 6.5",
        (CODED + CHUNK + b"0\r\nx-trailer: 1\r\n\r\n",),
        (200,),
        body=JSON,
        never=(b"x-trailer",),
    ),
    Answer(
        "trailers: of framing",
        "RFC 9110, section 6.5.1",
        (CODED + CHUNK + b"0\r\ncontent-length: 1\r\nset-cookie: poison\r\n\r\n",),
        (200, *FAILED),
        never=_SEEN,
    ),
    *(
        Answer(
            f"headers of one hop: {name.decode()}",
            "RFC 9110, section 7.6.1",
            (COUNTED.replace(b"\r\n", b"\r\n" + name + b": poison\r\n", 1),),
            (200,),
            body=JSON,
            never=_SEEN,
        )
        for name in (
            b"keep-alive",
            b"te",
            b"trailer",
            b"set-cookie",
            b"proxy-authenticate",
            b"server",
        )
    ),
    bad("garbage", b"poison\r\n\r\n"),
    bad("TLS", b"\x15\x03\x01\x00\x02\x02\x46"),
    bad("nothing", b"", closes=True),
    bad("half a head", COUNTED[:40], closes=True),
    bad("half a body", COUNTED[:-5], closes=True),
    bad("half a chunk", CHUNKED[:-20], closes=True),
    bad("no last chunk", CODED + CHUNK, closes=True),
    bad("status of two digits", COUNTED.replace(b"200", b"20")),
    bad("status of text", COUNTED.replace(b"200", b"abc")),
    bad("version 9.9", COUNTED.replace(b"1.1", b"9.9")),
    bad("length and chunks", CHUNKED.replace(b"\r\n", b"\r\ncontent-length: 5\r\n", 1)),
    bad("two lengths", COUNTED.replace(b"\r\n", b"\r\ncontent-length: 5\r\n", 1)),
    bad("negative length", OK + b"content-length: -1\r\n\r\n" + JSON),
    bad("length of text", OK + b"content-length: x\r\n\r\n" + JSON),
    bad("length beyond 64 bits", OK + b"content-length: 99999999999999999999\r\n\r\n" + JSON),
    bad("NUL in a header", COUNTED.replace(b"\r\n", b"\r\nx: \x00\r\n", 1)),
    bad("CR in a header", COUNTED.replace(b"\r\n", b"\r\nx: a\rset-cookie: poison\r\n", 1)),
    bad("bad chunk size", CODED + b"ZZ\r\n" + JSON),
    bad("spilled chunk", CODED + b"1\r\n" + JSON + b"\r\n0\r\n\r\n"),
    bad("a folded header", COUNTED.replace(b"\r\n", b"\r\nx: a\r\n set-cookie: poison\r\n", 1)),
    bad(
        "upgrade",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\npoison",
    ),
    bad("endless head", OK + b"x: " + b"y" * 300_000, source="RFC 6585, section 5"),
    bad("endless headers", OK + b"x: y\r\n" * 50_000, source="RFC 6585, section 5"),
    bad(
        "endless interim answers",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        source="RFC 9110, section 15.2",
    ),
    bad(
        "endless trailers",
        CODED + CHUNK + b"0\r\n" + b"a: b\r\n" * 100_000,
        source="CVE-2023-39326",
    ),
    bad(
        "one endless trailer", CODED + CHUNK + b"0\r\na: " + b"b" * 600_000, source="CVE-2023-39326"
    ),
    bad("endless extension", CODED + b"1;" + b"a" * 600_000, source="CVE-2023-39326"),
    *(
        Answer(
            f"status {status}",
            "RFC 9110, section 15",
            (COUNTED.replace(b"200", b"%d" % status),),
            (expected,),
            never=_SEEN,
        )
        for status, expected in ((301, 503), (400, 400), (403, 503), (422, 422), (500, 503))
    ),
    Answer(
        "stream: good",
        "HTML, section 9.2",
        (STREAM + chunk(EVENT) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",),
        (200,),
        stream=True,
        body=EVENT + b"data: [DONE]\n\n",
        reused=True,
    ),
    Answer(
        "stream: something behind",
        BEHIND,
        (STREAM + chunk(EVENT) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n" + POISON,),
        (200,),
        stream=True,
        body=EVENT + b"data: [DONE]\n\n",
        never=_SEEN,
        reused=False,
    ),
    Answer(
        "stream: trailers",
        "RFC 9110, section 6.5",
        (STREAM + chunk(EVENT) + chunk(b"data: [DONE]\n\n") + b"0\r\nx-trailer: 1\r\n\r\n",),
        (200,),
        stream=True,
        body=EVENT + b"data: [DONE]\n\n",
        never=(b"x-trailer",),
    ),
    Answer(
        "stream: endless trailers",
        "CVE-2023-39326",
        (STREAM + chunk(EVENT) + b"0\r\n" + b"a: b\r\n" * 100_000,),
        (200,),
        stream=True,
        never=(b"a: b",),
    ),
]
