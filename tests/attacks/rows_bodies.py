"""Bodies: their lengths, their chunks, and what follows them."""

from rows_heads import GET, good, refused
from vectors import Bytes, Vector, shown

LENGTH = "RFC 9112, section 6.3"
CODING = "RFC 9112, section 6.1; Kettle, HTTP Desync Attacks (2019)"
CHUNK = "RFC 9112, section 7.1; CVE-2025-22871 (Go)"
BODY = b'{"model":"test-model","prompt":"x"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
CODED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
WHOLE = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
FIRST = b"%x\r\n%b\r\n" % (len(BODY), BODY)


def with_headers(*lines: bytes) -> bytes:
    return HEAD + b"\r\n".join(lines) + b"\r\n\r\n"


_LENGTHS = (
    *(b"", b"+35", b"-35", b"-0", b"35 35", b"35,35", b"35, 36", b"0x23", b"35.0", b"3.5e1"),
    *(b"35;", b"35\x0b", b"\x0b35", b"3_5", b"thirty", b"\xb3\xb5", b"\xd9\xa3\xd9\xa5", b"35L"),
    *(b"18446744073709551616", b"9" * 30, b"9" * 5000, b"'35'", b"35\x00", b"#"),
)
_CODINGS = (
    *(b"identity", b"gzip", b"deflate", b"gzip, chunked", b"chunked, gzip", b"chunked, identity"),
    *(b"identity, chunked", b"chunked, chunked", b"xchunked", b"chunkedx", b"chunked;q=1", b"x"),
    *(b'"chunked"', b"'chunked'", b"\x0bchunked", b"chunked\x0b", b"chunked\x00", b"", b"chunk"),
    *(b"chunked,", b",chunked", b"chun ked", b"trailers", b"\xa0chunked", b"CHUNKED, x", b"cow"),
)
_PAIRS = {
    "length first": (b"content-length: 35", b"transfer-encoding: chunked"),
    "coding first": (b"transfer-encoding: chunked", b"content-length: 35"),
    "short length": (b"content-length: 4", b"transfer-encoding: chunked"),
    "no length": (b"content-length: 0", b"transfer-encoding: chunked"),
    "length and an unknown coding": (b"content-length: 35", b"transfer-encoding: x"),
    "two codings": (b"transfer-encoding: chunked", b"transfer-encoding: identity"),
    "two codings, the other way": (b"transfer-encoding: identity", b"transfer-encoding: chunked"),
    "the same coding twice": (b"transfer-encoding: chunked", b"transfer-encoding: chunked"),
    "two lengths": (b"content-length: 35", b"content-length: 36"),
    "the same length twice": (b"content-length: 35", b"content-length: 35"),
    "a blank before the colon": (b"transfer-encoding : chunked",),
    "a tab before the colon": (b"transfer-encoding\t: chunked",),
    "a folded coding": (b"transfer-encoding:\r\n chunked",),
    "hidden by a NUL": (b"content-length: 35", b"\x00transfer-encoding: chunked"),
    "a folded length": (b"content-length: 3\r\n 5",),
}
_SIZES = (
    *(
        b"ZZ",
        b"-1",
        b"+1",
        b" 1",
        b"1 ",
        b"\t1",
        b"1\t",
        b"0x1",
        b"1_0",
        b"g",
        b"\xb9",
        b"",
        b"1.0",
    ),
    *(b"1 ;a", b"0" * 17, b"f" * 17, b"1,", b'"1"', b"1;\x00", b"1;a\x0b", b"1;a=\x7f", b"\x00"),
    *(b"1\r", b"\r", b"z;", b"0 ", b"-0", b"00x"),
)
_EXTENSIONS = (b";", b";a", b";a=b", b';a="b"', b";a;b", b'; a = "\\"; "')
_SPILLS = {
    "too long": b"1\r\nab\r\n0\r\n\r\n",
    "no line end": b"1\r\na0\r\n\r\n",
    "LF alone": b"1\r\na\n0\r\n\r\n",
    "CR alone": b"1\r\na\r0\r\n\r\n",
    "size ends with LF": b"1\na\r\n0\r\n\r\n",
    "last size ends with LF": FIRST + b"0\n\r\n",
    "LF in an extension": b"1;a\nb\r\na\r\n0\r\n\r\n",
    "CR in an extension": b"1;a\rb\r\na\r\n0\r\n\r\n",
    "a line end before the size": b"\r\n1\r\na\r\n0\r\n\r\n",
    "two line ends": b"1\r\na\r\n\r\n0\r\n\r\n",
    "a whole request": b"1\r\na" + GET,
}
_TRAILERS = (
    *(b"no colon", b" a: b", b"a b: c", b": x", b"a: b\x00", b"a\x00: b", b"a: b\r\n c", b"a : b"),
    *(b"a: \x7f", b"GET / HTTP/1.1", b"\x00", b"a\x80: b"),
)
_GOOD_TRAILERS = (
    *(b"a: b", b"a:", b"content-length: 5", b"transfer-encoding: gzip", b"host: y", b"cookie: z"),
    b"authorization: Bearer x",
)
_ENDLESS = {
    "trailers": FIRST + b"0\r\n" + b"a: b\r\n" * 20_000,
    "one trailer": FIRST + b"0\r\na: " + b"b" * 150_000,
    "an extension": b"1;" + b"a" * 150_000,
    "extensions": b"1;aaaaaaaaaaaaaaaa\r\nx\r\n" * 5000,
    "small chunks": b"1\r\nx\r\n" * 30_000,
}

VECTORS: list[Vector] = [
    good("length", LENGTH, with_headers(b"content-length: 35") + BODY),
    good(
        "length: with zeros",
        LENGTH,
        with_headers(b"content-length: 0000000035") + BODY + GET,
        statuses=(200, 200),
    ),
    good(
        "length: 5,000 zeros",
        LENGTH,
        b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: " + b"0" * 5000 + b"\r\n\r\n" + GET,
        statuses=(200, 200),
    ),
    good("length: blanks around", LENGTH, with_headers(b"content-length: \t 35 \t") + BODY),
    good(
        "length: of a GET",
        "RFC 9110, section 9.3.1",
        b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 35\r\n\r\n" + BODY + GET,
        statuses=(200, 200),
    ),
    good("length: in parts", LENGTH, with_headers(b"content-length: 35"), BODY[:10], BODY[10:]),
    *(
        refused(f"length: {shown(each)}", LENGTH, with_headers(b"content-length: " + each) + BODY)
        for each in _LENGTHS
    ),
    Bytes(
        "length: too long",
        "RFC 9110, section 15.5.14",
        (with_headers(b"content-length: 9223372036854775807"),),
        (413,),
        kept=True,
    ),
    good("chunks", CHUNK, CODED + WHOLE + GET, statuses=(200, 200)),
    good("chunks: byte by byte", CHUNK, CODED, *(bytes([each]) for each in WHOLE)),
    good("chunks: upper case", CHUNK, with_headers(b"TRANSFER-ENCODING: \tCHUNKED ") + WHOLE),
    good("chunks: zeros before the size", CHUNK, CODED + b"0000" + WHOLE),
    good(
        "chunks: of a GET",
        CHUNK,
        b"GET /health HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + WHOLE + GET,
        statuses=(200, 200),
    ),
    *(
        refused(
            f"coding: {shown(each)}", CODING, with_headers(b"transfer-encoding: " + each) + WHOLE
        )
        for each in _CODINGS
    ),
    refused("coding: in HTTP/1.0", CODING, CODED.replace(b"1.1", b"1.0") + WHOLE),
    *(
        refused(f"framing: {name}", CODING, with_headers(*lines) + WHOLE)
        for name, lines in _PAIRS.items()
    ),
    *(
        refused(f"size: {shown(each)}", CHUNK, CODED + each + b"\r\nx\r\n0\r\n\r\n")
        for each in _SIZES
    ),
    *(
        good(
            f"extension: {shown(each)}",
            "RFC 9112, section 7.1.1",
            CODED + FIRST.replace(b"\r\n", each + b"\r\n", 1) + b"0" + each + b"\r\n\r\n",
        )
        for each in _EXTENSIONS
    ),
    *(refused(f"chunk: {name}", CHUNK, CODED + data) for name, data in _SPILLS.items()),
    *(
        refused(f"size without its line: {shown(each)}", CHUNK, CODED + each, then=b"")
        for each in (b"Z", b"-", b" ", b"1x", b"\n")
    ),
    *(
        refused(
            f"trailer: {shown(each)}",
            "RFC 9112, section 7.1.2",
            CODED + FIRST + b"0\r\n" + each + b"\r\n\r\n",
        )
        for each in _TRAILERS
    ),
    *(
        good(
            f"trailer: {shown(each)}",
            "RFC 9112, section 7.1.2",
            CODED + FIRST + b"0\r\n" + each + b"\r\n\r\n" + GET,
            statuses=(200, 200),
        )
        for each in _GOOD_TRAILERS
    ),
    *(
        refused(f"endless: {name}", "CVE-2023-39326 (Go)", CODED + data, then=b"")
        for name, data in _ENDLESS.items()
    ),
    good(
        "expect: no body comes",
        "RFC 9110, section 10.1.1",
        with_headers(b"expect: 100-continue", b"content-length: 35"),
        BODY,
    ),
    good(
        "a body where nothing is",
        LENGTH,
        HEAD.replace(b"/v1/completions", b"/nowhere") + b"content-length: 35\r\n\r\n" + BODY + GET,
        statuses=(404, 200),
    ),
    Bytes(
        "half-closed: in a body",
        LENGTH,
        (with_headers(b"content-length: 35") + BODY[:9],),
        (),
        half_closed=True,
    ),
    Bytes(
        "half-closed: after a body",
        LENGTH,
        (with_headers(b"content-length: 35") + BODY,),
        (200,),
        half_closed=True,
    ),
]
