"""The retry budget: retries must not overload the engines.

Retries are limited to a share of the requests, or to a least rate, as in Finagle's `RetryBudget`
(https://twitter.github.io/finagle/guide/Clients.html#retries) and Envoy's `retry_budget`
(https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/cluster/v3/circuit_breaker.proto).
There a retry beyond the budget fails. Here it waits for the budget, because a failed engine may
leave hundreds of requests behind at once; it fails only if no engine is known to work after that.
"""

from math import exp

SHARE = 0.2
"""Retries allowed per request, as in Finagle and Envoy."""
LEAST_PER_S = 10.0
"""Retries per second that are always allowed, as in Finagle."""
BURST_S = 10.0
"""Time over which unused retries accumulate; also the time constant of the arrival rate."""
LONGEST_PAUSE_S = 10.0
"""Longest wait for the budget; after it a retry is made only if an engine is known to work."""
LOOK_AGAIN = 20
"""Factor on `PlacementConfig.retry_pause_s` if the request has failed on all instances that are up.
The default pause is then one second, in which probes find out which of them are down."""


class RetryBudget:
    """The generic cell rate algorithm, applied to retries. Pure: time is an argument."""

    def __init__(self) -> None:
        self._arrivals, self._counted_s = 0.0, 0.0
        self._next_s = float("-inf")

    def arrived(self, now_s: float) -> None:
        """Count a request."""
        self._arrivals, self._counted_s = self._faded(now_s) + 1.0, now_s

    def pause_s(self, now_s: float) -> float | None:
        """Take a retry from the budget and return the pause before it; None if that would be longer
        than `LONGEST_PAUSE_S`, and none is taken."""
        next_s = self._next(now_s)
        if next_s - now_s > LONGEST_PAUSE_S:
            return None
        self._next_s = next_s
        return max(0.0, next_s - now_s)

    def has_spare(self, now_s: float) -> bool:
        """Whether the budget allows a retry at once."""
        return self._next(now_s) <= now_s

    def _next(self, now_s: float) -> float:
        per_s = max(LEAST_PER_S, SHARE * self._faded(now_s) / BURST_S)
        return max(self._next_s, now_s - BURST_S) + 1.0 / per_s

    def _faded(self, now_s: float) -> float:
        return self._arrivals * exp((self._counted_s - now_s) / BURST_S)
