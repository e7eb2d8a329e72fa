"""How much is learnt from, where there is more than enough."""

import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Sample:
    """Evenly spaced ones of many, so that learning takes a bounded share of the processor.

    What was learnt of an answer is half forgotten some 700 answers later: at a high rate most of
    them would only displace each other.
    """

    _PER_S = 20.0
    _AT_ONCE = 256.0

    def __init__(self) -> None:
        self._allowed = self._AT_ONCE
        self._then_s = -math.inf

    def of(self, many: Sequence[T], now_s: float) -> Sequence[T]:
        """Some of `many`, all of them where they are few."""
        self._allowed = min(self._AT_ONCE, self._allowed + (now_s - self._then_s) * self._PER_S)
        self._then_s = now_s
        if self._allowed < 1.0 or not many:
            return ()
        chosen = many[:: math.ceil(len(many) / self._allowed)]
        self._allowed -= len(chosen)
        return chosen
