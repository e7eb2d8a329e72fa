"""Request lines and headers, good and bad."""

from vectors import Bytes, Vector, shown

GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
LINE = "RFC 9112, section 3"
FIELD = "RFC 9110, section 5.5; RFC 9112, section 5"
METHOD = "RFC 9110, section 9.1"
HOST = "RFC 9112, section 3.2"
LF = "RFC 9112, section 2.2; CVE-2023-30589 (llhttp)"


def line(data: bytes) -> bytes:
    return data + b"\r\nhost: x\r\n\r\n"


def field(data: bytes) -> bytes:
    return b"GET /health HTTP/1.1\r\nhost: x\r\n" + data + b"\r\n\r\n"


def refused(name: str, source: str, data: bytes, status: int = 400, *, then: bytes = GET) -> Bytes:
    """A refused head; a request `then` behind it gets no answer, either."""
    return Bytes(name, source, (data + then,), (status,))


def good(name: str, source: str, *sent: bytes, statuses: tuple[int, ...] = (200,)) -> Bytes:
    return Bytes(name, source, sent, statuses, kept=True)


_LINES = (
    *(b" ", b"GET", b"GET ", b"GET /health ", b"GET /health HTTP"),
    *(b"GET /health HTTP/", b"GET /health HTTP/1", b"GET /health HTTP/1.", b"GET /health HTTP/11"),
    *(b"GET /health HTTP/1.2", b"GET /health HTTP/9.9", b"GET /health HTTP/-1.1"),
    *(b"GET /health http/1.1", b"GET /health HTTP/1.1 ", b"GET /health HTTP/1.1x"),
    *(b"GET /health HTTP/1.1 HTTP/1.1", b"GET /health FTP/1.1", b"GET /hea lth HTTP/1.1"),
    *(b" GET /health HTTP/1.1", b"\tGET /health HTTP/1.1", b"GET\t/health HTTP/1.1"),
    *(b"G\x00T /health HTTP/1.1", b"G@T /health HTTP/1.1", b"GET\x00 /health HTTP/1.1"),
    *(b"GET \x00 HTTP/1.1", b"GET /\x00 HTTP/1.1", b"GET /\x7f HTTP/1.1", b"GET /\x01 HTTP/1.1"),
    *(b"GET /\xff HTTP/1.1", b"GET health HTTP/1.1", b"GET \\health HTTP/1.1", b":method: GET"),
    b'{"jsonrpc": "2.0"}',
)
_METHODS = (b"get", b"GE T", b"GETS", b"NONSENSE", b"G" * 5000, b"PROPFIND", b"SETUP", b"M-SEARCH")
_HEADER_NAMES = b' "(),/;<=>?@[\\]{}\x00\x01\x0b\x1f\x7f\x80\xff'
_CONTROLS = bytes(each for each in (*range(32), 127) if each not in b"\t\r\n")
_FOLDS = (b"x: a\r\n b", b"x: a\r\n\tb", b" x: a", b"x: a\r\n ", b"x:\r\n y: b")
_ENDS = {
    "in the request line": b"GET /health HTTP/1.1\nhost: x\r\n\r\n",
    "everywhere": b"GET /health HTTP/1.1\nhost: x\n\n",
    "after a header": b"GET /health HTTP/1.1\r\nhost: x\nx: y\r\n\r\n",
    "at the end": b"GET /health HTTP/1.1\r\nhost: x\r\n\n",
    "CR alone after a header": b"GET /health HTTP/1.1\r\nhost: x\rx: y\r\n\r\n",
    "CR alone after the request line": b"GET /health HTTP/1.1\rhost: x\r\n\r\n",
    "CR CR LF": b"GET /health HTTP/1.1\r\r\nhost: x\r\n\r\n",
    "CR CR LF after a header": b"GET /health HTTP/1.1\r\nhost: x\r\r\n\r\n",
    "CR NUL": b"GET /health HTTP/1.1\r\nhost: x\r\x00\n\r\n",
}
_HOSTS = (
    *(b"a b", b"a/b", b"a@b", b"a\\b", b"a?b", b"a#b", b"a\tb", b'"a"', b"a<b>", b"a{b}", b"\xe4"),
    b"a|b",
)
_PROTOCOLS = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32) + b"\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "memcached": b"stats\r\n",
    "PROXY, version 2": b"\r\n\r\n\x00\r\nQUIT\n!\x11\x00\x0c" + bytes(12),
    "RDP": b"\x03\x00\x00\x13\x0e\xe0\x00\x00\x00\x00\x00\x01\x00\x08\x00\x03\x00\x00\x00",
    "zeros": bytes(64),
}
_PROTOCOLS_LIKE_HTTP = {
    "SMTP": b"EHLO example.org\r\n",
    "FTP": b"USER anonymous\r\n",
    "PROXY": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n" + GET,
    "RTSP": b"DESCRIBE rtsp://x/ RTSP/1.0\r\nCSeq: 1\r\n\r\n",
}
"""Other protocols whose first word could be a method, since HTTP has no fixed list of methods."""

VECTORS: list[Vector] = [
    *(refused(f"request line: {shown(each)}", LINE, line(each)) for each in _LINES),
    refused("request line: HTTP/0.9", LINE, line(b"GET /health HTTP/0.9"), 505),
    refused("request line: HTTP/2.0", LINE, line(b"GET /health HTTP/2.0"), 505),
    refused(
        "request line: HTTP/0.9 without a version", "RFC 1945, section 4.1", b"GET /health\r\n"
    ),
    *(
        refused(
            f"header name: {shown(bytes([each]))}", FIELD, field(b"x" + bytes([each]) + b"y: z")
        )
        for each in _HEADER_NAMES
    ),
    refused("header name: none", FIELD, field(b": z")),
    refused("header name: without a colon", FIELD, field(b"x")),
    refused("header name: a blank before the colon", "CVE-2019-16276 (Go)", field(b"x : z")),
    *(
        refused(
            f"header value: {shown(bytes([each]))}", FIELD, field(b"x: y" + bytes([each]) + b"z")
        )
        for each in _CONTROLS
    ),
    good("header value: obs-text", FIELD, field(b"x: \xc3\xa9\xff")),
    good("header value: empty", FIELD, field(b"x:")),
    good("header value: tabs and blanks around", FIELD, field(b"x: \t y \t ")),
    *(refused(f"folded header: {shown(each)}", FIELD, field(each)) for each in _FOLDS),
    *(refused(f"bare line end: {name}", LF, data) for name, data in _ENDS.items()),
    *(
        refused(
            f"host: {shown(each)}", HOST, b"GET /health HTTP/1.1\r\nhost: " + each + b"\r\n\r\n"
        )
        for each in _HOSTS
    ),
    refused("host: missing", HOST, b"GET /health HTTP/1.1\r\n\r\n"),
    refused("host: twice", HOST, field(b"host: y")),
    refused("host: twice the same", HOST, field(b"Host: x")),
    refused("host: missing, with a whole URL", HOST, b"GET http://x/health HTTP/1.1\r\n\r\n"),
    *(
        good(f"host: {name}", HOST, b"GET /health HTTP/1.1\r\nhost:" + value + b"\r\n\r\n")
        for name, value in {
            "empty": b"",
            "IPv6": b" [::1]:8000",
            "with a port": b" example.org:80",
            "international": b" xn--bcher-kva.example",
        }.items()
    ),
    Bytes("host: missing in HTTP/1.0", HOST, (b"GET /health HTTP/1.0\r\n\r\n",), (200,)),
    *(refused(f"protocol: {name}", LINE, data, then=b"") for name, data in _PROTOCOLS.items()),
    *(
        refused(f"protocol: {name}", METHOD, data, 501, then=b"")
        for name, data in _PROTOCOLS_LIKE_HTTP.items()
    ),
    *(
        refused(f"method: {shown(each)}", METHOD, line(each + b" /health HTTP/1.1"), 501)
        for each in _METHODS
    ),
    refused("CONNECT", "RFC 9110, section 9.3.6", b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", 405),
    refused("431: long target", "RFC 6585, section 5", b"GET /" + b"a" * 150_000, 431, then=b""),
    refused(
        "431: long header", "RFC 6585, section 5", field(b"x: " + b"a" * 150_000), 431, then=b""
    ),
    refused("431: long name", "RFC 6585, section 5", field(b"x" * 150_000), 431, then=b""),
    refused("431: many headers", "RFC 6585, section 5", field(b"x: y\r\n" * 300 + b"z: z"), 431),
    refused("431: empty lines", "RFC 9112, section 2.2", b"\r\n" * 40_000, 431, then=b""),
    good("target: a whole URL", LINE, line(b"GET http://x/health HTTP/1.1")),
    good("target: with a query", LINE, line(b"GET /health?a=%00 HTTP/1.1")),
    good("target: encoded", LINE, line(b"GET /he%61lth HTTP/1.1")),
    good("target: dots", LINE, line(b"GET /../health HTTP/1.1"), statuses=(404,)),
    good(
        "target: encoded line ends",
        LINE,
        line(b"GET /%0d%0aset-cookie:x HTTP/1.1"),
        statuses=(404,),
    ),
    good("target: two slashes", LINE, line(b"GET //health HTTP/1.1"), statuses=(404,)),
    good("OPTIONS *", "RFC 9110, section 9.3.7", line(b"OPTIONS * HTTP/1.1"), statuses=(204,)),
    good("PATCH", METHOD, line(b"PATCH /v1/completions HTTP/1.1"), statuses=(405,)),
    good("TRACE", "RFC 9110, section 9.3.8", line(b"TRACE /health HTTP/1.1"), statuses=(405,)),
    good("empty lines before a request", "RFC 9112, section 2.2", b"\r\n\r\n" + GET),
    good("byte by byte", LINE, *(bytes([each]) for each in GET)),
    good("pipelined", "RFC 9112, section 9.3", GET * 20, statuses=(200,) * 20),
    *(
        good(
            f"upgrade: {name}",
            "RFC 9110, section 7.8",
            field(b"connection: upgrade\r\nupgrade: " + name.encode()) + GET,
            statuses=(200, 200),
        )
        for name in ("h2c", "websocket", "TLS/1.0", "nonsense")
    ),
    Bytes(
        "upgrade: and close",
        "RFC 9112, section 9.6",
        (field(b"connection: close, upgrade\r\nupgrade: h2c") + GET,),
        (200,),
    ),
    Bytes("close", "RFC 9112, section 9.6", (field(b"connection: close") + GET,), (200,)),
    Bytes(
        "close, in a list", "RFC 9112, section 9.6", (field(b"connection: x, ClosE") + GET,), (200,)
    ),
    Bytes("half-closed", "RFC 9112, section 9.6", (GET,), (200,), half_closed=True),
    Bytes(
        "half-closed: pipelined", "RFC 9112, section 9.6", (GET * 3,), (200,) * 3, half_closed=True
    ),
    Bytes("half-closed: in a head", "RFC 9112, section 9.6", (GET[:20],), (), half_closed=True),
]
