"""Lets a test set the wall clock of every process that has this folder in PYTHONPATH.

Python runs this module before anything else. The offset, in seconds, is one float64 in the file
that CHAOS_CLOCK names. The monotonic clock is not changed, as when an administrator or NTP sets
a machine's time.
"""

import mmap
import os
import struct
import time


def _follow(path: str) -> None:
    with open(path, "rb") as file:
        offset = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    true_time = time.time

    def shifted() -> float:
        found: float = struct.unpack_from("<d", offset)[0]
        return true_time() + found

    time.time = shifted


if os.environ.get("CHAOS_CLOCK"):
    _follow(os.environ["CHAOS_CLOCK"])
