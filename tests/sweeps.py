"""How many of the cases that are drawn at random a run tries.

`make test` tries some, `make test-sweeps` (`SWEEPS=whole`) all, of what is marked `sweep` and of
hypothesis' examples.
"""

import os

WHOLE = os.environ.get("SWEEPS") == "whole"


def cases(whole: int, some: int) -> int:
    """`whole` of them in a sweep, otherwise `some`."""
    return whole if WHOLE else some
