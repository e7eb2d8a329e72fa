"""Requests that wait because no instance that serves them is up."""

from collections.abc import Iterator

from foretell.placement.request import Request, Stage
from foretell.placement.state import PlacementState

MOST_HELD = 1000
"""The most requests that may wait."""


class Outages:
    """The requests of one placement core that wait for an instance, the longest wait first."""

    def __init__(self, state: PlacementState, longest_s: float) -> None:
        """A request waits for `longest_s` at most."""
        self._state = state
        self._longest_s = longest_s
        self._keys: dict[str, None] = {}

    @property
    def held(self) -> int:
        """The number of requests that wait."""
        return len(self._keys)

    def begins(self, request: Request) -> bool:
        """Let the request wait here and return True; False if it has waited for long enough or too
        many wait. A request whose gateway has named its instances does not wait, since the gateway
        can name others."""
        now_s = self._state.now_s
        request.instance_by_s = request.instance_by_s or now_s + self._longest_s
        full = self.held >= MOST_HELD
        if full or request.arrived.among is not None or now_s >= request.instance_by_s:
            return False
        request.stage = Stage.INSTANCE
        self._keys[request.key] = None
        self._state.wait(request, request.instance_by_s - now_s)
        return True

    def take_servable(self) -> Iterator[Request]:
        """Remove and yield those that some instance can serve now; place each before the next."""
        for request in [self._state.requests[key] for key in self._keys]:
            if self._state.eligible(request):
                del self._keys[request.key]
                request.ticket = 0
                yield request

    def leave(self, key: str) -> None:
        """Remove the request if it waits here."""
        self._keys.pop(key, None)
