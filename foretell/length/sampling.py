"""A sample of the answers to learn from, if there are too many."""

import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Sample:
    """Chooses evenly spaced items, so that learning takes a bounded share of the CPU.

    An answer is half forgotten about 700 answers later, so at a high rate most answers would only
    displace each other.
    """

    _PER_S = 20.0
    _AT_ONCE = 256.0

    def __init__(self) -> None:
        self._allowed = self._AT_ONCE
        self._then_s = -math.inf

    def of(self, many: Sequence[T], now_s: float) -> Sequence[T]:
        """Evenly spaced items of `many`, or all of them if they are few."""
        self._allowed = min(self._AT_ONCE, self._allowed + (now_s - self._then_s) * self._PER_S)
        self._then_s = now_s
        if self._allowed < 1.0 or not many:
            return ()
        chosen = many[:: math.ceil(len(many) / self._allowed)]
        self._allowed -= len(chosen)
        return chosen
