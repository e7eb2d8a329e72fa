"""How many offline requests may be on their way, so that online targets still hold.

Each instance has a window of its own, which grows while the twin foretells that a request that
came now would get its first token in time, and shrinks at once when not: additive increase,
multiplicative decrease. What waits in an engine's queue delays what is foretold, so it counts.
An engine that holds offline requests back by itself gets so many that it can choose.
Within the window requests are spaced, so that those that end together are not replaced together: an
online request would wait for all of their prompts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

UNKNOWN_WINDOW = 8.0
"""The window of an instance of which nothing is foretold."""
LARGEST_WINDOW = 512.0
CANDIDATES = 128
"""Requests that wait in an engine which chooses among them."""
_GROWTH, _LEAST_STEP, _DECREASE = 1.1, 1.0, 0.7
_IDLE_FACTOR = 2.0
"""Without a target, the TTFT may be so many times the least that was foretold."""
_QUEUE_RATIO = 0.125
_ROOM_RATIO = 0.8
"""A window grows only while the TTFT is below this share of its bound."""
_SPACING_RATIO = 0.8
"""Share of the time between two requests that end, where so many are on their way as may be."""
_LONGEST_GAP_S = 0.05
_AT_ONCE = 2
_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of one instance now."""

    healthy: bool
    waiting: int | None = None
    """Requests in its queue; None: unknown."""
    ttft_s: float | None = None
    """The TTFT that is foretold of a request that came now; None: unknown."""
    running: int | None = None
    """Requests that it works on; None: unknown."""
    chooses: bool = False
    """Whether the engine keeps offline requests from delaying online ones."""


class Release:
    """The windows of all instances."""

    def __init__(self, ttft_target_s: float = inf) -> None:
        """`ttft_target_s`: what online requests are promised; infinite: nothing."""
        self._target_s = ttft_target_s
        self._windows: dict[str, float] = {}
        self._least_s: dict[str, float] = {}

    @property
    def window(self) -> int:
        """Offline requests that may be on their way to all instances together."""
        return int(sum(self._windows.values()))

    def observe(self, instances: Mapping[str, Seen], in_flight: int) -> None:
        """Adjust the windows; `in_flight` offline requests are on their way."""
        used = 2 * in_flight >= self.window
        self._windows = {
            name: self._adjusted(name, seen, used=used) for name, seen in instances.items()
        }
        self._least_s = {name: s for name, s in self._least_s.items() if name in instances}

    def _adjusted(self, name: str, seen: Seen, *, used: bool) -> float:
        window = self._windows.get(name, 1.0)
        if not seen.healthy:
            return 0.0
        if seen.chooses:
            short = CANDIDATES - (seen.waiting or 0)
            return min(LARGEST_WINDOW, max(1.0, window + (short if used or short < 0 else 0)))
        if seen.ttft_s is None:
            return UNKNOWN_WINDOW
        # What is foretold of an idle engine changes while step times are learnt.
        idle = seen.running == 0 and not seen.waiting
        least_s = seen.ttft_s if idle else min(seen.ttft_s, self._least_s.get(name, inf))
        self._least_s[name] = least_s
        # A target that is missed even by an idle instance cannot be what holds work back.
        bound_s = max(_IDLE_FACTOR * least_s, self._target_s if self._target_s < inf else 0.0)
        if seen.ttft_s > bound_s:
            return _DECREASE * window
        # A few are always on their way to an engine that begins and ends many requests.
        queue = (seen.waiting or 0) > 1 + (seen.running or 0) * _QUEUE_RATIO
        if used and not queue and seen.ttft_s <= _ROOM_RATIO * bound_s:
            return min(LARGEST_WINDOW, max(window + _LEAST_STEP, _GROWTH * window))
        return window


class Spacing:
    """When each request is sent; a few that are late may be sent at once."""

    def __init__(self) -> None:
        self._took_s = 0.0
        self._next_s = 0.0

    def ended(self, took_s: float) -> None:
        """A request was answered after so many seconds."""
        self._took_s += _SMOOTHING * (took_s - self._took_s) if self._took_s else took_s

    def wait_s(self, window: int, now_s: float) -> float:
        """Seconds until the next request may be sent, of `window` that may be on their way."""
        gap_s = min(_LONGEST_GAP_S, _SPACING_RATIO * self._took_s / max(1, window))
        at_s = max(self._next_s, now_s - _AT_ONCE * gap_s)
        self._next_s = at_s + gap_s
        return max(0.0, at_s - now_s)
