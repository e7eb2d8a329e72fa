"""Parses the head of a request. httptools does the parsing and refuses what is ambiguous. This
module finds where the head ends and limits its size: httptools gets no byte behind the head."""

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPMethod
from urllib.parse import unquote

import httptools

from foretell.http1.bounds import Bounds, RemoteProtocolError, malformed

_END = b"\r\n\r\n"
_ONCE = frozenset(("host", "content-length", "transfer-encoding"))
"""Headers that say where a request goes and where it ends: a second one could contradict."""
_METHODS = frozenset(map(str, HTTPMethod))
"""HTTP's methods; the parser also accepts some of other protocols."""
_MOST_NAMES, _LONGEST_NAME = 1000, 100
_HOST = re.compile(r"[!$%&'()*+,;=:\[\]._~0-9A-Za-z-]*")
"""RFC 9110, section 7.2: a host and perhaps a port."""
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+( |$)")
"""A syntactically valid method, known or not."""


class _Names(dict[bytes, str]):
    """A cache of lower-case header names by received name: clients use few different ones."""

    def __missing__(self, name: bytes) -> str:
        if len(self) >= _MOST_NAMES:
            self.clear()
        key = name.lower().decode("latin-1")
        if len(key) <= _LONGEST_NAME:
            self[name] = key
        return key


_NAMES = _Names()


@dataclass(slots=True)
class RequestHead:
    """The parsed head of a request."""

    method: str
    path: str
    """The decoded path of the target, which may be a whole URL."""
    query: str
    """The target's part behind the question mark, not decoded."""
    headers: dict[str, str]
    """Values by lower-case name: the first of several, but all of `connection`, joined."""
    is_1_1: bool
    keep_alive: bool
    """Whether the client wants to keep the connection open."""
    length_bytes: int | None
    """The length of the body; None if it is chunked."""
    content: bytes | None = None
    """The body if it came with the head; None if it follows."""


class HeadParser:
    __slots__ = (
        *("begun", "_bounds", "_parser", "_bytes", "_tail", "_url", "_headers", "_repeated"),
        *("_method", "_version", "_keep_alive", "_wrong"),
    )

    def __init__(self, bounds: Bounds) -> None:
        self.begun = False
        self._bounds = bounds
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        """None once the head is complete, which breaks a reference cycle: memory that only the
        garbage collector frees is cold when it is used again."""
        self._bytes = 0
        self._tail = b""
        self._url = b""
        self._headers: dict[str, str] = {}
        self._repeated = 0
        """The number of headers whose name had come before."""
        self._method = ""
        """Empty until the head is complete."""
        self._version = ""
        self._keep_alive = False
        self._wrong = ""

    def feed(self, data: bytes, at: int) -> int:
        """Take the head's bytes from `data[at:]`, at least one, and return where the rest begins.
        Raises `RemoteProtocolError`."""
        assert self._parser is not None
        self.begun = True
        end = self._end_in(data, at)
        part = data[at : end or len(data)]
        self._bytes += len(part)
        if self._bytes > self._bounds.head_bytes:
            raise self._too_long()
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            pass  # an offer to switch to another protocol, such as h2c, is ignored
        except httptools.HttpParserError as error:
            is_method = isinstance(error, httptools.HttpParserInvalidMethodError)
            if str(error).startswith("Invalid method for") or (is_method and _TOKEN.match(part)):
                raise _unknown_method() from error
            raise malformed(str(error)) from error
        if len(self._headers) + self._repeated > self._bounds.headers:
            raise self._too_long()
        if self._method:
            self._parser = None
            if not end:
                raise malformed("a line does not end with CR LF")
            return end
        self._tail = (self._tail + part)[-len(_END) + 1 :]
        return end or len(data)

    def head(self) -> RequestHead | None:
        """Return the head, or None while it is incomplete. Raises `RemoteProtocolError`."""
        if not self._method:
            return None
        if self._method not in _METHODS:
            raise _unknown_method()
        if self._wrong:
            raise malformed(self._wrong)
        if self._version not in ("1.1", "1.0"):
            raise RemoteProtocolError(505, "this server speaks HTTP/1.1 and 1.0")
        is_1_1 = self._version == "1.1"
        host = self._headers.get("host")
        if is_1_1 if host is None else not _is_host(host):
            raise malformed("it needs one valid 'Host' header")
        path, query = _split(self._url)
        return RequestHead(
            self._method,
            path,
            query,
            self._headers,
            is_1_1,
            is_1_1 and self._keep_alive and self._method != "CONNECT",
            self._length_bytes(is_1_1),
        )

    def _length_bytes(self, is_1_1: bool) -> int | None:
        headers = self._headers
        if "transfer-encoding" in headers:
            coding = headers["transfer-encoding"]
            if not is_1_1 or coding.strip().lower() != "chunked":
                raise malformed("its 'Transfer-Encoding' is not 'chunked'")
            return None
        # The parser accepts only digits, and no number beyond 64 bits.
        length = headers.get("content-length")
        return int(length.lstrip("0") or "0") if length else 0

    def _end_in(self, data: bytes, at: int) -> int:
        """The position in `data` where the head may end; 0 if it does not end there."""
        if self._tail:  # its end may span two reads
            seam = self._tail + data[at : at + len(_END) - 1]
            found = seam.find(_END)
            if found >= 0:
                return at + found + len(_END) - len(self._tail)
        found = data.find(_END, at)
        return found + len(_END) if found >= 0 else 0

    def _too_long(self) -> RemoteProtocolError:
        most = f"{self._bounds.head_bytes} bytes and {self._bounds.headers} headers"
        return RemoteProtocolError(431, f"a request's head has at most {most}")

    # --- callbacks of httptools ---

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = _NAMES[name]
        if key not in self._headers:
            self._headers[key] = value.decode("latin-1")
            return
        self._repeated += 1
        if key in _ONCE:
            self._wrong = f"it has two headers '{key}'"
        elif key == "connection":
            self._headers[key] += f", {value.decode('latin-1')}"

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._method = self._parser.get_method().decode("latin-1")
        self._version = self._parser.get_http_version()
        self._keep_alive = self._parser.should_keep_alive()


def _unknown_method() -> RemoteProtocolError:
    return RemoteProtocolError(501, "its method is none of HTTP's")


@lru_cache(256)
def _is_host(text: str) -> bool:
    return bool(_HOST.fullmatch(text))


def _split(target: bytes) -> tuple[str, str]:
    """The path and the query of a request's target, which may be a whole URL."""
    before, _, query = target.partition(b"?")
    path = before.decode("latin-1")
    if b"%" in before or not before.startswith(b"/"):
        with suppress(httptools.HttpParserInvalidURLError):
            path = unquote((httptools.parse_url(target).path or b"").decode("latin-1"))
    return path, query.decode("latin-1")
