"""Answers that are compressed although nobody asked for it, as by a proxy before an engine."""

import zlib

MOST_DECODED_BYTES = 16 << 20
"""What one read of a compressed answer may become: a few bytes could stand for all memory."""
IDENTITY = (b"", b"identity")
_GZIP = (b"gzip", b"x-gzip")


class Undecodable(Exception):
    """The bytes are not what their header says, or far more than they seem."""


class Decoder:
    def __init__(self, encoding: bytes) -> None:
        self._is_gzip = encoding in _GZIP
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, as it begins
        self._begun = False

    def feed(self, data: bytes) -> bytes:
        """What the next bytes stand for; perhaps nothing yet. Raises `Undecodable`."""
        parts: list[bytes] = []
        left = MOST_DECODED_BYTES
        try:
            while data and left > 0:
                if self._stream.eof:  # gzip may have several members
                    if not self._is_gzip:
                        break
                    self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
                parts.append(self._decompress(data, left))
                left -= len(parts[-1])
                data = self._stream.unused_data or self._stream.unconsumed_tail
        except zlib.error as error:
            raise Undecodable(str(error)) from error
        if data and left <= 0:
            raise Undecodable("it is far longer than it seems")
        return b"".join(parts)

    def _decompress(self, data: bytes, most: int) -> bytes:
        first, self._begun = not self._begun, True
        try:
            return self._stream.decompress(data, most)
        except zlib.error:
            if not first or self._is_gzip:
                raise
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS)  # deflate without zlib's head
            return self._stream.decompress(data, most)


def decoder_of(encoding: bytes) -> Decoder | None:
    """What decodes a `content-encoding`; None where nobody here can."""
    name = encoding.strip().lower()
    return Decoder(name) if name == b"deflate" or name in _GZIP else None
