"""How much may be repeated: attempts that fail must not become a load of their own.

Retries are a bounded share of the requests, with some for free, as in Finagle's `RetryBudget`
(https://twitter.github.io/finagle/guide/Clients.html#retries) and Envoy's `retry_budget`
(https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/cluster/v3/circuit_breaker.proto).
There a retry beyond the budget fails; here it waits until the budget allows it, because the engines
that failed may have left hundreds of requests behind at once; and it fails only where no engine is
known to answer by then.
"""

from math import exp

SHARE = 0.2
"""Retries for each request, as in Finagle and Envoy."""
LEAST_PER_S = 10.0
"""Retries that are always allowed, as in Finagle."""
BURST_S = 10.0
"""What was not used within so long may be used at once; also the time constant of arrivals."""
LONGEST_PAUSE_S = 10.0
"""A retry that would have to wait longer waits for so long, and is then made only where an engine
is known to answer."""

LOOK_AGAIN = 20
"""So many times as long is the pause before a retry where all instances that are up have failed the
request: a second, in which probes tell which of them are down."""


class RetryBudget:
    """The generic cell rate algorithm over retries; pure, time is an argument."""

    def __init__(self) -> None:
        self._arrivals, self._counted_s = 0.0, 0.0
        self._next_s = float("-inf")

    def arrived(self, now_s: float) -> None:
        """A request has come."""
        self._arrivals, self._counted_s = self._faded(now_s) + 1.0, now_s

    def pause_s(self, now_s: float) -> float | None:
        """The pause before the next retry, which is then taken to be made; None: there is none."""
        next_s = self._next(now_s)
        if next_s - now_s > LONGEST_PAUSE_S:
            return None
        self._next_s = next_s
        return max(0.0, next_s - now_s)

    def has_spare(self, now_s: float) -> bool:
        """Whether a retry could be made at once."""
        return self._next(now_s) <= now_s

    def _next(self, now_s: float) -> float:
        per_s = max(LEAST_PER_S, SHARE * self._faded(now_s) / BURST_S)
        return max(self._next_s, now_s - BURST_S) + 1.0 / per_s

    def _faded(self, now_s: float) -> float:
        return self._arrivals * exp((self._counted_s - now_s) / BURST_S)
