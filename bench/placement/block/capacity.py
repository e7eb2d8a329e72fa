"""The highest rate within a bound on P99 TTFT, found with few runs.

P99 TTFT grows about exponentially in the rate where it leaves the bound behind, so a search steps
out from a guess until it has the bound between two rates, and then probes where the straight line
of the logarithm between them crosses it.
"""

from dataclasses import dataclass, field
from math import log

STEP = 1.06
TOLERANCE = 0.015
"""Relative width of the bracket in which the crossing is interpolated."""
_MARGIN = 0.15
_DIGITS = 3


@dataclass(slots=True)
class Search:
    """One search; `next_qps` is to be probed until `capacity_qps` is found."""

    next_qps: float
    bound_s: float
    step: float = STEP
    """Factor between rates until the bound is between two."""
    tolerance: float = TOLERANCE
    probes: dict[float, float] = field(default_factory=dict)
    """P99 TTFT at each rate."""

    def learn(self, ttft_p99_s: float) -> bool:
        """Take the result at `next_qps`; returns whether another is wanted."""
        self.probes[self.next_qps] = ttft_p99_s
        low, high = self._bracket()
        if low is None or high is None:
            beyond = min(self.probes) / self.step if low is None else max(self.probes) * self.step
            self.next_qps = round(beyond, _DIGITS)
            return True
        if high <= low * (1 + self.tolerance):
            return False
        margin = _MARGIN * (high - low)
        crossing = min(max(self._crossing(low, high), low + margin), high - margin)
        self.next_qps = round(crossing, _DIGITS)
        return True

    @property
    def capacity_qps(self) -> float:
        """Where the bound is crossed, once the search has ended."""
        low, high = self._bracket()
        assert low is not None, "the search has not ended"
        assert high is not None, "the search has not ended"
        return self._crossing(low, high)

    def as_json(self) -> dict[str, float]:
        """P99 TTFT (s) by rate."""
        return {str(qps): round(p99, 3) for qps, p99 in sorted(self.probes.items())}

    def _bracket(self) -> tuple[float | None, float | None]:
        """The lowest rate that exceeds the bound and the highest below it that keeps it."""
        high = min((qps for qps, p99 in self.probes.items() if p99 > self.bound_s), default=None)
        kept = (qps for qps, p99 in self.probes.items() if p99 <= self.bound_s)
        low = max((qps for qps in kept if high is None or qps < high), default=None)
        return low, high

    def _crossing(self, low: float, high: float) -> float:
        start, end = log(self.probes[low]), log(self.probes[high])
        return low + (high - low) * (log(self.bound_s) - start) / (end - start)
