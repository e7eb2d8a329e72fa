"""Requests that will hardly be in time make way for those that may still be.

Where more comes than engines can serve, queues in the order of arrival make everybody late alike:
each request waits behind others for whom it is too late already. What has lost most of its chance
to be in time therefore waits here until an engine has room, where it delays nobody: goodput counts
who is in time, not how late the others are.
"""

from collections.abc import Collection, Sequence

from foretell.model import RequestSpec
from foretell.placement.request import Request, Stage
from foretell.placement.shares import MOST_HELD, has_room
from foretell.placement.state import State
from foretell.policy import Candidate
from foretell.policy.slo import share_within, ttft_quantiles

CHANCE = 0.5
"""Who is less likely than this to be in time, wherever it goes, makes way."""
LONGEST_S = 30.0
"""Seconds from its arrival for which a request makes way to others."""


class Yielding:
    """The requests of one placement core that wait because they would be late anyway."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._alike: dict[tuple[str, Collection[str] | None], dict[str, float]] = {}
        """The deadlines of those that may go to the same engines."""
        self.held = 0
        """Requests that wait."""

    def begins(self, request: Request, spec: RequestSpec, candidates: Sequence[Candidate]) -> bool:
        """Whether the request, which has a target for its TTFT, waits here from now on; `spec` has
        what is left of its targets.

        Not after a failed attempt, nor if it wants to be told, and not where an engine has room or
        nobody predicts.
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
        """The request, if it waits here, does so no longer."""
        group = request.arrived.model, request.arrived.among
        alike = self._alike.get(group)
        if alike is not None and alike.pop(request.key, None) is not None:
            self.held -= 1
            if not alike:
                del self._alike[group]

    def take_next(self) -> str | None:
        """Where an engine has room: the most urgent of those that wait for it.

        Of one priority, that is the one whose target ends first; those whose targets have passed
        come after all others.
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
        told = self._state.ask(request.trial, eligible, load_alone=True)
        return any(has_room(answer.load) for answer in told.answers)
