"""What an engine expects of online requests: that some come, and how many KV blocks they take."""

from collections.abc import Callable
from math import exp, inf, sqrt

WINDOW_S = 3600.0
"""The past that counts for the reserve, as in Echo."""
DEVIATIONS = 2.0
ONLINE_FOR_S = 300.0
"""So long after its last online request an engine expects another at any moment."""
_RESERVE_EVERY_S = 0.1


class BurstReserve:
    """KV blocks kept free for bursts of online requests: Echo's threshold on active memory.

    By mean and deviation of the blocks that they hold, each moment counting alike.

    Older moments fade with `WINDOW_S`. Before anything was seen there is no reserve.
    """

    def __init__(self) -> None:
        self._weight = self._mean = self._variance = 0.0
        self._last: tuple[float, float] | None = None

    def observe(self, blocks: float, now_s: float) -> None:
        """Online requests hold `blocks` from now on; `now_s` never goes back."""
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
        """Blocks to keep free while online requests hold `held`."""
        return max(0.0, self.usual_blocks - held)


class ExpectedOnline:
    """Follows the online requests that come to one engine."""

    def __init__(self) -> None:
        self._until_s = self._untold_until_s = -inf
        self._ttft_s = inf

    def came(self, ttft_s: float, now_s: float) -> None:
        """One came that asks for this TTFT, `inf` where it asks for none; `now_s` never goes back.

        What was asked for is forgotten once nobody has come for `ONLINE_FOR_S`.
        """
        if now_s > self._until_s:
            self._ttft_s = inf
        self._until_s = now_s + ONLINE_FOR_S
        self._ttft_s = min(self._ttft_s, ttft_s)
        if ttft_s == inf:
            self._untold_until_s = self._until_s

    def ttft_s(self, now_s: float) -> float:
        """What `foretell.model.EngineSnapshot.online_ttft_s` says: the least TTFT asked for.

        0 where some asked for none, infinite where nobody is expected.
        """
        if now_s > self._until_s:
            return inf
        return 0.0 if now_s <= self._untold_until_s else self._ttft_s


class OnlineWatch:
    """Both, of one engine."""

    def __init__(self) -> None:
        self.expected, self.reserve = ExpectedOnline(), BurstReserve()
        self._due_s = 0.0

    def observe(self, held_blocks: Callable[[], float], now_s: float) -> None:
        """A step is about to be scheduled; `held_blocks` counts those of online requests."""
        if now_s >= self._due_s:
            self._due_s = now_s + _RESERVE_EVERY_S
            self.reserve.observe(held_blocks(), now_s)

    def told(self, now_s: float) -> tuple[float, float]:
        """What snapshots say of it: `online_ttft_s` and `usual_online_blocks`."""
        return self.expected.ttft_s(now_s), self.reserve.usual_blocks
