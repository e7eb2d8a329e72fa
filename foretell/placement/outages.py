"""Requests that wait because no instance that serves them is up."""

from collections.abc import Iterator

from foretell.placement.request import Request, Stage
from foretell.placement.state import State

MOST_HELD = 1000
"""Requests that wait at most."""


class Outages:
    """The requests of one placement core that wait for an instance, by their arrival."""

    def __init__(self, state: State, longest_s: float) -> None:
        """A request waits for `longest_s` at most."""
        self._state = state
        self._longest_s = longest_s
        self._keys: dict[str, None] = {}

    @property
    def held(self) -> int:
        """Requests that wait."""
        return len(self._keys)

    def begins(self, request: Request) -> bool:
        """Whether the request waits here from now on; otherwise it has waited for long enough, or
        too many do. A gateway that has named who may get a request may name others: it does not
        wait."""
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
        """Those that an instance serves now: each is to be placed before the next one is taken."""
        for request in [self._state.requests[key] for key in self._keys]:
            if self._state.eligible(request):
                del self._keys[request.key]
                request.ticket = 0
                yield request

    def leave(self, key: str) -> None:
        """The request waits no more, if it did."""
        self._keys.pop(key, None)
