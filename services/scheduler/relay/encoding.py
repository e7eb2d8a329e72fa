"""Answers that are compressed although nobody asked for it, as by a proxy before an engine."""

import zlib

_SLICE_BYTES = 1 << 13
"""What is decoded at once: a few bytes could stand for all memory."""
_MOST_MEMBERS = 64
"""Of a slice: each takes time, also an empty one."""
IDENTITY = (b"", b"identity")
_GZIP = (b"gzip", b"x-gzip")


class Undecodable(Exception):
    """The bytes are not what their header says."""


class Decoder:
    """Decodes slice by slice: what is added is taken until nothing waits."""

    def __init__(self, encoding: bytes) -> None:
        self.waits = False
        """There may be more to take."""
        self._is_gzip = encoding in _GZIP
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, as it begins
        self._begun = False
        self._data = b""

    def add(self, data: bytes) -> None:
        self._data += data
        self.waits |= bool(data)

    def take(self) -> bytes:
        """What the next bytes stand for; perhaps nothing yet. Raises `Undecodable`."""
        parts: list[bytes] = []
        room = _SLICE_BYTES
        try:
            for _ in range(_MOST_MEMBERS):
                if self._stream.eof:  # gzip may have several members
                    if not (self._is_gzip and self._data):
                        self._data = b""
                        break
                    self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
                parts.append(self._decompress(room))
                room -= len(parts[-1])
                self._data = self._stream.unused_data or self._stream.unconsumed_tail
                if room <= 0 or not self._data:
                    break
        except zlib.error as error:
            raise Undecodable(str(error)) from error
        self.waits = room <= 0 or bool(self._data)
        return b"".join(parts)

    def _decompress(self, most: int) -> bytes:
        first, self._begun = not self._begun, True
        try:
            return self._stream.decompress(self._data, most)
        except zlib.error:
            if not first or self._is_gzip:
                raise
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS)  # deflate without zlib's head
            return self._stream.decompress(self._data, most)


def decoder_of(encoding: bytes) -> Decoder | None:
    """What decodes a `content-encoding`; None where nobody here can."""
    name = encoding.strip().lower()
    return Decoder(name) if name == b"deflate" or name in _GZIP else None
