"""Arrivals and latencies of one scheduler replica, for the provisioner."""

from collections import deque
from math import floor

from foretell.model import Prediction, RequestSpec

LENGTHS = 64
"""The number of latest requests whose lengths are reported."""
WINDOW_S = 10.0
"""A latency counts as recent for one to two times this long."""


class _Worst:
    """The largest of the recent values: those of this window and of the one before."""

    def __init__(self) -> None:
        self._window = 0
        self._now = self._before = 0.0

    def add(self, now_s: float, value: float) -> None:
        self.at(now_s)
        self._now = max(self._now, value)

    def at(self, now_s: float) -> float:
        window = floor(now_s / WINDOW_S)
        if window != self._window:
            self._before = self._now if window == self._window + 1 else 0.0
            self._window, self._now = window, 0.0
        return max(self._now, self._before)


class Demand:
    """Counts of one replica, from which the provisioner decides. Times are seconds on any
    monotonic clock. Only online requests count: offline ones take what is left, and no client
    waits for their tokens."""

    def __init__(self) -> None:
        self.arrived_total = 0
        self._lengths: deque[tuple[int, float]] = deque(maxlen=LENGTHS)
        self._e2e, self._predicted_e2e = _Worst(), _Worst()

    def arrived(self, spec: RequestSpec) -> None:
        """Count a request that has arrived, whatever happens to it later."""
        self.arrived_total += 1
        self._lengths.append((spec.prompt_tokens, spec.length.expected_tokens))

    def placed(self, now_s: float, prediction: Prediction) -> None:
        """Record the prediction of a request that was sent to an instance."""
        self._predicted_e2e.add(now_s, prediction.e2e_s)

    def ended(self, now_s: float, e2e_s: float) -> None:
        """Record the e2e latency of a request that was answered completely."""
        self._e2e.add(now_s, e2e_s)

    def status(self, now_s: float, held: int) -> dict[str, object]:
        """The fields of `/status`; `held` requests wait for an instance."""
        return {
            "arrived_total": self.arrived_total,
            "held": held,
            "lengths": [(prompt, round(output, 1)) for prompt, output in self._lengths],
            "worst_e2e_s": round(self._e2e.at(now_s), 3),
            "worst_predicted_e2e_s": round(self._predicted_e2e.at(now_s), 3),
        }
