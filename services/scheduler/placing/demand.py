"""What comes to this replica, how long it takes, and how far the replica is behind."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from math import floor

from foretell.model import Prediction, RequestSpec

LENGTHS = 64
"""The latest requests whose lengths are reported."""
WINDOW_S = 10.0
"""A latency counts among the recent ones for one to two times as long."""
_LOOK_EVERY_S = 0.05
_SORTED_FOR_S = 1.0
"""So long one sorting of all ends serves: many are refused at once."""


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


class Lateness:
    """Looks at the clock again and again, and sees how much later than planned it does so."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """The latest delay."""
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now_s = self._loop.time()
        self.seconds = max(0.0, now_s - self._due_s)
        self._due_s = now_s + _LOOK_EVERY_S
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self._look)


class Ends:
    """When the requests in progress are predicted to end."""

    def __init__(
        self, ends_s: Callable[[], Iterable[float]], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`ends_s` are instants of `clock`."""
        self._ends_s = ends_s
        self._clock = clock
        self._sorted: list[float] = []
        self._sorted_s = float("-inf")

    def wait_s(self, number: int) -> float:
        """Seconds until so many more of them have ended; 0 where nothing is predicted."""
        now_s = self._clock()
        if now_s >= self._sorted_s + _SORTED_FOR_S:
            self._sorted, self._sorted_s = sorted(self._ends_s()), now_s
        if not self._sorted:
            return 0.0
        return max(0.0, self._sorted[min(number, len(self._sorted)) - 1] - now_s)
