"""What an engine expects of online requests: whether they arrive, and their KV blocks."""

from collections.abc import Callable
from math import exp, inf, sqrt

WINDOW_S = 3600.0
"""Time constant of the reserve's statistics, the window of Echo."""
DEVIATIONS = 2.0
ONLINE_FOR_S = 300.0
"""Time after the last online request for which an engine expects another at any moment."""
_RESERVE_EVERY_S = 0.1


class BurstReserve:
    """KV blocks kept free for bursts of online requests: Echo's threshold on active memory.

    It uses the time-weighted mean and standard deviation of the blocks that online requests hold;
    weights decay with `WINDOW_S`. Before the first observation there is no reserve.
    """

    def __init__(self) -> None:
        self._weight = self._mean = self._variance = 0.0
        self._last: tuple[float, float] | None = None

    def observe(self, blocks: float, now_s: float) -> None:
        """Note that online requests hold `blocks` from now on; `now_s` is monotonic."""
        if self._last is not None:
            held, since_s = self._last
            self._add(held, max(0.0, now_s - since_s))
        self._last = (blocks, now_s)

    def _add(self, blocks: float, seconds: float) -> None:
        self._weight = self._weight * exp(-seconds / WINDOW_S) + seconds
        if self._weight <= 0.0:
            return
        share, off = seconds / self._weight, blocks - self._mean
        self._mean += share * off
        self._variance = (1.0 - share) * (self._variance + share * off * off)

    @property
    def usual_blocks(self) -> float:
        """Blocks for online requests, those that they hold included: mean + 2 deviations."""
        return self._mean + DEVIATIONS * sqrt(self._variance)

    def blocks(self, held: float) -> float:
        """Return the blocks to keep free while online requests hold `held`."""
        return max(0.0, self.usual_blocks - held)


class ExpectedOnline:
    """Follows the arrivals of online requests at one engine."""

    def __init__(self) -> None:
        self._until_s = self._untold_until_s = -inf
        self._ttft_s = inf

    def came(self, ttft_s: float, now_s: float) -> None:
        """Note an arrival with this TTFT target, `inf` for none; `now_s` is monotonic.

        Targets are forgotten after `ONLINE_FOR_S` without an arrival.
        """
        if now_s > self._until_s:
            self._ttft_s = inf
        self._until_s = now_s + ONLINE_FOR_S
        self._ttft_s = min(self._ttft_s, ttft_s)
        if ttft_s == inf:
            self._untold_until_s = self._until_s

    def ttft_s(self, now_s: float) -> float:
        """Return the least TTFT target, for `foretell.model.EngineSnapshot.online_ttft_s`.

        0 if some requests had none; infinite if no online request is expected.
        """
        if now_s > self._until_s:
            return inf
        return 0.0 if now_s <= self._untold_until_s else self._ttft_s


class OnlineWatch:
    """`ExpectedOnline` and `BurstReserve` of one engine."""

    def __init__(self) -> None:
        self.expected, self.reserve = ExpectedOnline(), BurstReserve()
        self._due_s = 0.0

    def observe(self, held_blocks: Callable[[], float], now_s: float) -> None:
        """Update before a step is scheduled; `held_blocks` counts the blocks of online requests."""
        if now_s >= self._due_s:
            self._due_s = now_s + _RESERVE_EVERY_S
            self.reserve.observe(held_blocks(), now_s)

    def for_snapshot(self, now_s: float) -> tuple[float, float]:
        """Return `online_ttft_s` and `usual_online_blocks` for a snapshot."""
        return self.expected.ttft_s(now_s), self.reserve.usual_blocks
