"""Header blocks of HTTP/2, which `hpack` encodes and decodes; those that recur, once."""

from collections.abc import Callable
from functools import lru_cache

from hpack import Decoder, Encoder

LONGEST_HEADERS = 65536
Decode = Callable[[bytes], dict[str, str]]
"""The headers in a block; raises `HPACKError`."""

_HEAD = ((":status", "200"), ("content-type", "application/grpc"))


def decoding() -> Decode:
    """The decoder of a connection's blocks in their order: they refer to those before."""
    decoder = Decoder(LONGEST_HEADERS)
    return lambda block: _decoded(decoder, block)


@lru_cache(256)
def decoded_alone(block: bytes) -> dict[str, str]:
    """The headers of a block of a peer without a dynamic table: they are always the same."""
    decoder = Decoder(LONGEST_HEADERS)
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    return _decoded(decoder, block)


@lru_cache(256)
def trailers(status: int, text: str, *, whole: bool) -> bytes:
    """The block that ends a call of gRPC; `whole`: it is all that the call answers."""
    fields = [("grpc-status", str(status)), ("grpc-message", text)]
    return _encoded(*(_HEAD if whole else ()), *fields[: 2 if text else 1])


def _decoded(decoder: Decoder, block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in decoder.decode(block)}


def _encoded(*headers: tuple[str, str]) -> bytes:
    encoder = Encoder()
    encoder.header_table_size = 0
    block: bytes = encoder.encode(headers)
    return block


RESPONSE = _encoded(*_HEAD)
"""The block that begins an answer of gRPC."""
