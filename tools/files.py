"""Reads published files, gzipped or not."""

import gzip
from pathlib import Path


def read_bytes(path: Path) -> bytes:
    """A file's bytes, decompressed as often as it was gzipped."""
    raw = path.read_bytes()
    while raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return raw
