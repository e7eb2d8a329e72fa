"""Requests that will probably miss their TTFT target yield to those that can still meet it.

Under overload, queues in order of arrival make all requests late: each waits behind others that
are too late already. A request that has lost most of its chance to be in time therefore waits here,
where it delays no other, until an engine has room. Goodput counts the requests that are in time,
not how late the others are.
"""

from collections.abc import Collection, Sequence

from foretell.model import RequestSpec
from foretell.placement.request import Request, Stage
from foretell.placement.shares import MOST_HELD, has_room
from foretell.placement.state import PlacementState
from foretell.policy import Candidate
from foretell.policy.slo import share_within, ttft_quantiles

CHANCE = 0.5
"""A request yields if its chance to be in time is lower than this on every candidate."""
LONGEST_S = 30.0
"""Seconds from its arrival for which a request yields at most."""


class Yielding:
    """The requests of one placement core that wait because they would probably be late."""

    def __init__(self, state: PlacementState) -> None:
        self._state = state
        self._alike: dict[tuple[str, Collection[str] | None], dict[str, float]] = {}
        """By model and allowed instances: the deadlines of the requests, by their keys."""
        self.held = 0
        """The number of requests that wait."""

    def begins(self, request: Request, spec: RequestSpec, candidates: Sequence[Candidate]) -> bool:
        """Let a request with a TTFT target wait here and return True if it should yield.

        `spec` has what is left of its targets. A request does not yield after a failed attempt, if
        it asked to be rejected when late, if a candidate has room, or if there are no predictions.
        """
        arrived, wait_s = request.arrived, request.arrived_s + LONGEST_S - self._state.now_s
        if arrived.late == "reject" or request.failures or wait_s <= 0.0:
            return False
        predictions = [c.prediction for c in candidates if c.prediction is not None]
        chances = (share_within(ttft_quantiles(each), spec.slo.ttft_s) for each in predictions)
        if max(chances, default=1.0) >= CHANCE or any(has_room(c.load) for c in candidates):
            return False
        if self.held >= MOST_HELD:
            return False
        request.stage = Stage.YIELD
        alike = self._alike.setdefault((arrived.model, arrived.among), {})
        alike[request.key] = request.arrived_s + arrived.spec.slo.ttft_s
        self.held += 1
        self._state.wait(request, wait_s)
        return True

    def end(self, request: Request) -> None:
        """Remove the request if it waits here."""
        group = request.arrived.model, request.arrived.among
        alike = self._alike.get(group)
        if alike is not None and alike.pop(request.key, None) is not None:
            self.held -= 1
            if not alike:
                del self._alike[group]

    def take_next(self) -> str | None:
        """Remove and return the most urgent request of those for which an engine has room.

        Within a priority that is the one with the earliest deadline; those whose deadlines have
        passed come last. None if there is none.
        """
        requests, now_s = self._state.requests, self._state.now_s
        for alike in self._alike.values():
            if self._have_room(requests[next(iter(alike))]):
                *_, key = min(
                    (requests[key].arrived.spec.priority, by_s < now_s, by_s, key)
                    for key, by_s in alike.items()
                )
                self.end(requests[key])
                requests[key].ticket = 0
                return key
        return None

    def _have_room(self, request: Request) -> bool:
        eligible = self._state.eligible(request)
        if not eligible:
            return False
        asked = self._state.ask(request.trial, eligible, load_alone=True)
        return any(has_room(answer.load) for answer in asked.answers)
