"""KV blocks kept free for bursts of online requests: Echo's threshold on active memory."""

from math import exp, sqrt

WINDOW_S = 3600.0
"""The past that counts, as in the paper."""
DEVIATIONS = 2.0


class BurstReserve:
    """Mean and deviation of the blocks that online requests hold, each moment counting alike.

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
