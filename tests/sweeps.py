"""The number of random cases that a test run tries.

For tests marked `sweep` and for hypothesis' examples, `make test` tries some cases and
`make test-sweeps` (`SWEEPS=whole`) tries all.
"""

import os

WHOLE = os.environ.get("SWEEPS") == "whole"


def cases(whole: int, some: int) -> int:
    """`whole` of them in a sweep, otherwise `some`."""
    return whole if WHOLE else some
