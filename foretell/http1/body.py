"""Finds the end of a message's body and extracts the content."""

import re

from foretell.http1.bounds import Bounds, malformed

_TEXT = rb"[\t -~\x80-\xff]*"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(;" + _TEXT + rb")?\r\n")
_CHUNK_END = re.compile(rb"\r\n")
_TRAILER = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:" + _TEXT + rb")?\r\n")
"""The kinds of lines in a chunked body."""
_NAMES = {_SIZE: "chunk's size", _CHUNK_END: "chunk's end", _TRAILER: "trailer"}
_RESTS = (b"\r\n", b"\n", b"0\r\n", b":\r\n")
"""Endings that are tried on an incomplete line: if none makes it valid, it is malformed."""


class Counted:
    """A body whose length the head has stated."""

    __slots__ = ("_left", "done")

    def __init__(self, length_bytes: int) -> None:
        self._left = length_bytes
        self.done = length_bytes == 0

    def take(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Return the content in `data[at:]` and the position of the first byte not taken. Raises
        `RemoteProtocolError` as soon as the bytes cannot be a valid body."""
        part = data[at : at + self._left]
        self._left -= len(part)
        self.done = self._left == 0
        return part, at + len(part)


class Chunked:
    """A chunked body. Extensions of chunks and trailers are parsed and dropped."""

    __slots__ = (
        *("done", "_bounds", "_line", "_part", "_left"),
        *("_chunks", "_body_bytes", "_extensions", "_trailer_bytes"),
    )

    def __init__(self, bounds: Bounds) -> None:
        self.done = False
        self._bounds = bounds
        self._line = _SIZE
        """The kind of line that comes next, once the current chunk has ended."""
        self._part = bytearray()
        self._left = 0
        self._chunks = self._body_bytes = self._extensions = self._trailer_bytes = 0

    def take(self, data: bytes, at: int) -> tuple[bytes, int]:
        content: list[bytes] = []
        while at < len(data) and not self.done:
            if self._left:
                part = data[at : at + self._left]
                content.append(part)
                self._left -= len(part)
                at += len(part)
            elif self._line is _SIZE and not self._part and (found := _SIZE.match(data, at)):
                self._begin_chunk(found)
                at = found.end()
                end = at + self._left
                if self._left and data[end : end + 2] == b"\r\n":  # usual: all here
                    content.append(data[at:end])
                    self._left, self._line, at = 0, _SIZE, end + 2
            else:
                at = self._take_line(data, at)
        return content[0] if len(content) == 1 else b"".join(content), at

    def _take_line(self, data: bytes, at: int) -> int:
        kind, end = self._line, data.find(b"\n", at) + 1
        line = data[at : end or len(data)]
        if self._part:
            self._part += line
            line = bytes(self._part)
        found = kind.fullmatch(line)
        if found is None and (end or not any(kind.fullmatch(line + rest) for rest in _RESTS)):
            raise malformed(f"a {_NAMES[kind]} is wrong")
        if found is None or kind is _TRAILER:
            self._check(len(line) if kind is _SIZE else 0, len(line) if kind is _TRAILER else 0)
        if found is None:
            self._part = self._part or bytearray(line)
            return len(data)
        self._part.clear()
        if kind is _SIZE:
            self._begin_chunk(found)
        elif kind is _CHUNK_END:
            self._line = _SIZE
        else:
            self._trailer_bytes += len(line)
            self.done = line == b"\r\n"
        return end

    def _begin_chunk(self, line: re.Match[bytes]) -> None:
        size, extension = int(line[1], 16), line[2]
        if extension:
            self._check(len(extension), 0)
            self._extensions += len(extension)
        self._left = size
        self._line = _CHUNK_END if size else _TRAILER
        self._chunks += 1
        self._body_bytes += size
        few = self._chunks <= self._bounds.small_chunks
        if not few and self._body_bytes < self._bounds.chunk_bytes * self._chunks:
            raise malformed("its chunks are too small")

    def _check(self, extension_bytes: int, trailer_bytes: int) -> None:
        if self._extensions + extension_bytes > self._bounds.chunk_extension_bytes:
            raise malformed("its chunks' extensions are too long")
        if self._trailer_bytes + trailer_bytes > self._bounds.trailer_bytes:
            raise malformed("its trailers are too long")


Body = Counted | Chunked
