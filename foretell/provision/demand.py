"""What comes to one scheduler, and how long it takes."""

from collections import deque
from math import floor

from foretell.model import Prediction, RequestSpec

LENGTHS = 64
"""The latest requests whose lengths are reported."""
WINDOW_S = 10.0
"""A latency counts among the recent ones for one to two times as long."""


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
    """Counts of one replica, by which a provisioner decides. Instants are seconds of any clock
    that does not go back. Only online requests count: offline ones take what is left, and nobody
    waits for their tokens."""

    def __init__(self) -> None:
        self.arrived_total = 0
        self._lengths: deque[tuple[int, float]] = deque(maxlen=LENGTHS)
        self._e2e, self._predicted_e2e = _Worst(), _Worst()

    def arrived(self, spec: RequestSpec) -> None:
        """A request has come, whatever becomes of it."""
        self.arrived_total += 1
        self._lengths.append((spec.prompt_tokens, spec.length.expected_tokens))

    def placed(self, now_s: float, prediction: Prediction) -> None:
        """It was sent to an instance, for which this was predicted."""
        self._predicted_e2e.add(now_s, prediction.e2e_s)

    def ended(self, now_s: float, e2e_s: float) -> None:
        """It was answered to its end so long after its arrival."""
        self._e2e.add(now_s, e2e_s)

    def told(self, now_s: float, held: int) -> dict[str, object]:
        """What `/status` says; `held` requests wait for an instance."""
        return {
            "arrived_total": self.arrived_total,
            "held": held,
            "lengths": [(prompt, round(output, 1)) for prompt, output in self._lengths],
            "worst_e2e_s": round(self._e2e.at(now_s), 3),
            "worst_predicted_e2e_s": round(self._predicted_e2e.at(now_s), 3),
        }
