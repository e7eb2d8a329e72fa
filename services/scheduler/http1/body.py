"""Where the body of a request ends, and what of it is content."""

import re
from dataclasses import dataclass
from typing import Protocol

from foretell.services.scheduler.http1.bounds import Bounds
from foretell.services.scheduler.http1.errors import malformed

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TEXT = rb"[\t -~\x80-\xff]*"


class Body(Protocol):
    """A body on its way."""

    done: bool
    """It has come to its end."""

    def take(self, data: bytes, at: int) -> tuple[bytes, int]:
        """The content in `data[at:]`, and where what was not taken begins.

        Raises `RemoteProtocolError` as soon as it can be no body.
        """
        ...


class Counted:
    """A body whose length was told before."""

    __slots__ = ("_left", "done")

    def __init__(self, length_bytes: int) -> None:
        self._left = length_bytes
        self.done = length_bytes == 0

    def take(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Take content, as `Body` says."""
        part = data[at : at + self._left]
        self._left -= len(part)
        self.done = self._left == 0
        return part, at + len(part)


@dataclass(frozen=True, slots=True)
class _Line:
    """A kind of line in a body that comes in chunks."""

    name: str
    whole: re.Pattern[bytes]
    begun: re.Pattern[bytes]
    """What may become such a line."""


_SIZE = _Line(
    "chunk's size",
    re.compile(rb"([0-9A-Fa-f]{1,16})(;" + _TEXT + rb")?\r\n"),
    re.compile(rb"[0-9A-Fa-f]{0,16}|[0-9A-Fa-f]{1,16}(;" + _TEXT + rb")?\r?"),
)
_CHUNK_END = _Line("chunk's end", re.compile(rb"\r\n"), re.compile(rb"\r?"))
_TRAILER = _Line(
    "trailer",
    re.compile(rb"(?:" + _TOKEN + rb":" + _TEXT + rb")?\r\n"),
    re.compile(rb"(?:" + _TOKEN + rb"(?::" + _TEXT + rb")?)?\r?"),
)


class Chunked:
    """A body in chunks. Their extensions and the trailers are read and forgotten."""

    __slots__ = (
        *("done", "_bounds", "_line", "_part", "_left"),
        *("_chunks", "_body_bytes", "_extensions", "_trailer_bytes"),
    )

    def __init__(self, bounds: Bounds) -> None:
        self.done = False
        self._bounds = bounds
        self._line: _Line = _SIZE
        """The kind of line that comes next, or when the chunk has ended."""
        self._part = bytearray()
        """Its beginning."""
        self._left = 0
        """What is still to come of the chunk."""
        self._chunks = self._body_bytes = self._extensions = self._trailer_bytes = 0

    def take(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Take content, as `Body` says."""
        content: list[bytes] = []
        while at < len(data) and not self.done:
            if self._left:
                part = data[at : at + self._left]
                content.append(part)
                self._left -= len(part)
                at += len(part)
            else:
                at = self._take_line(data, at)
        return content[0] if len(content) == 1 else b"".join(content), at

    def _take_line(self, data: bytes, at: int) -> int:
        kind, end = self._line, data.find(b"\n", at) + 1
        line = data[at : end or len(data)]
        if self._part:
            self._part += line
            line = bytes(self._part)
        if not end:
            if not kind.begun.fullmatch(line):
                raise malformed(f"a {kind.name} is wrong")
            self._check(len(line) if kind is _SIZE else 0, len(line) if kind is _TRAILER else 0)
            if not self._part:
                self._part += line
            return len(data)
        self._part.clear()
        found = kind.whole.fullmatch(line)
        if found is None:
            raise malformed(f"a {kind.name} is wrong")
        if kind is _SIZE:
            self._begin_chunk(int(found[1], 16), len(found[2] or b""))
        elif kind is _CHUNK_END:
            self._line = _SIZE
        else:
            self._check(0, len(line))
            self._trailer_bytes += len(line)
            self.done = line == b"\r\n"
        return end

    def _begin_chunk(self, size: int, extension_bytes: int) -> None:
        self._check(extension_bytes, 0)
        self._extensions += extension_bytes
        self._left = size
        self._line = _CHUNK_END if size else _TRAILER
        self._chunks += 1
        self._body_bytes += size
        bounds = self._bounds
        if (
            self._chunks > bounds.small_chunks
            and self._body_bytes < bounds.chunk_bytes * self._chunks
        ):
            raise malformed("its chunks are too small")

    def _check(self, extension_bytes: int, trailer_bytes: int) -> None:
        """What came last besides is not too much."""
        if self._extensions + extension_bytes > self._bounds.chunk_extension_bytes:
            raise malformed("its chunks' extensions are too long")
        if self._trailer_bytes + trailer_bytes > self._bounds.trailer_bytes:
            raise malformed("its trailers are too long")
