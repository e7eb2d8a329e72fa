"""Reads files that others have published, gzipped or not."""

import gzip
from pathlib import Path


def read_bytes(path: Path) -> bytes:
    """A file's bytes; gzip is undone as often as it was applied."""
    raw = path.read_bytes()
    while raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return raw
