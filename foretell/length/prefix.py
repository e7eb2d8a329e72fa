"""Hashes of a prompt's beginnings: two prompts that share a hash are equal up to where it ends.

They are chained hashes, as vLLM's for KV blocks, but of chunks that a scheduler can cut without the
engine's tokenizer: a fixed number of bytes of text, or of token ids.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

CHUNK_BYTES = 512
"""Bytes of UTF-8 in a chunk: about 128 tokens of English."""
CHUNK_TOKENS = 128
MOST_CHUNKS = 512
"""The rest is not hashed: if longer prompts had larger chunks, these would match no others."""


def chained(chunks: Iterable[bytes], key: bytes = b"") -> tuple[int, ...]:
    """A 64-bit hash of each chunk with all before it; with different keys, hashes never match."""
    parent, found = _digest(key), []
    for chunk in chunks:
        parent = _digest(parent + chunk)
        found.append(int.from_bytes(parent, "little"))
    return tuple(found)


def prefix_of_text(text: bytes, key: bytes) -> tuple[int, ...]:
    """The hashes of a text's whole chunks of `CHUNK_BYTES`."""
    return chained((text[i : i + CHUNK_BYTES] for i in _starts(len(text), CHUNK_BYTES)), key)


def whole_name(text: bytes, key: bytes, prefix: Sequence[int]) -> int:
    """The hash of a whole text, given the `prefix_of_text` of it or of a text that extends it."""
    chunks = min(len(prefix), len(text) // CHUNK_BYTES)
    parent = prefix[chunks - 1].to_bytes(8, "little") if chunks else _digest(key)
    return int.from_bytes(_digest(b"whole" + parent + text[chunks * CHUNK_BYTES :]), "little")


def prefix_of_tokens(token_ids: list[int], key: bytes) -> tuple[int, ...]:
    """The hashes of a prompt's whole chunks of `CHUNK_TOKENS`."""
    starts = _starts(len(token_ids), CHUNK_TOKENS)
    return chained((repr(token_ids[i : i + CHUNK_TOKENS]).encode() for i in starts), key)


def _starts(length: int, size: int) -> range:
    return range(0, min(MOST_CHUNKS, length // size) * size, size)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()
