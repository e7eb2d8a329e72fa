"""How long instances take to become ready, as measured."""

from collections import deque

WINDOW = 32
"""The latest cold starts, which count."""


class ColdStarts:
    """The rolling P90 of measured cold starts."""

    def __init__(self, assumed_s: float) -> None:
        """`assumed_s` counts until one has been measured."""
        self._assumed_s = assumed_s
        self._measured_s: deque[float] = deque(maxlen=WINDOW)

    def measured(self, seconds: float) -> None:
        """An instance has become ready so long after it was asked for."""
        self._measured_s.append(seconds)

    @property
    def p90_s(self) -> float:
        """The nearest-rank P90 of the latest."""
        if not self._measured_s:
            return self._assumed_s
        ordered = sorted(self._measured_s)
        return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
