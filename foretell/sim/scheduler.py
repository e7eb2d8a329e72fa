"""One scheduler replica in virtual time: its policy, and what it alone knows."""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from foretell.model import Load, Prediction, RequestSpec
from foretell.policy import Candidate, Holding, Needs, Policy, Urgency
from foretell.policy.order import LargestLast
from foretell.policy.shortlist import Shortlist

_MINUTE_S = 60.0

Answer = tuple[Load | None, Prediction | None]
"""Of a predictor; nothing where it is silent."""

SILENCE: Answer = (None, None)


class SimScheduler:
    """Stateless but for its counts, as `services.scheduler` is."""

    def __init__(
        self, policy: Policy, instances: int, candidates: int = 0, largest_last: float = 0.0
    ) -> None:
        """`candidates`: the most that are asked for one placement; 0: all. `largest_last` as
        `ClusterConfig` has it."""
        self._policy = policy
        self._order = LargestLast(largest_last) if largest_last else None
        self._shortlist = Shortlist[int](candidates)
        self.asks = policy.needs is not Needs.NOTHING
        """It asks predictors before it chooses, and placements that ask take turns."""
        self.needs = policy.needs
        self.busy = False
        """A placement is waiting for answers, or held."""
        self.ask_again: Callable[[], None] | None = None
        """For the placement that is held: something has changed."""
        self._holding = policy if isinstance(policy, Holding) else None
        self._waiting: list[tuple[Urgency, int, Callable[[], None]]] = []
        self._turns = 0
        self._giving = False
        self._outstanding = [0] * instances
        self._dispatched_s: list[deque[float]] = [deque() for _ in range(instances)]

    def ranked(self, spec: RequestSpec) -> RequestSpec:
        """`spec` with its priority among the others that came here."""
        return self._order.ranked(spec) if self._order is not None else spec

    def shortlist(
        self, living: list[int], random: Callable[[], float], now_s: float
    ) -> Sequence[int]:
        """Whom of the `living` to ask."""
        return self._shortlist.pick(living, self._outstanding.__getitem__, random, now_s)

    def choose(
        self,
        spec: RequestSpec,
        names: Sequence[str],
        answers: Sequence[tuple[int, Answer]],
        draw: float,
        now_s: float,
        *,
        may_hold: bool,
    ) -> int | None:
        """The instance for `spec` among those in `answers`; `names` are all instances'.

        None: it is better held, if it `may_hold`.
        """
        if self._shortlist.candidates:
            for index, (load, _) in answers:
                if load is not None:
                    self._shortlist.learn(index, load, self._outstanding[index], now_s)
        candidates = [
            Candidate(
                instance_id=names[index],
                outstanding=self._outstanding[index],
                dispatched_last_minute=self._last_minute(index, now_s),
                load=load,
                prediction=prediction,
            )
            for index, (load, prediction) in answers
        ]
        if may_hold and self._holding is not None:
            found = self._holding.consider(spec, candidates, draw)
            if found is None:
                return None
            chosen = found
        else:
            chosen = self._policy.choose(spec, candidates, draw)
        index = next(index for index, _ in answers if names[index] == chosen)
        self._outstanding[index] += 1
        self._dispatched_s[index].append(now_s)
        return index

    def ended(self, index: int) -> None:
        """A request that it sent there has ended, somehow."""
        self._outstanding[index] -= 1
        if self.ask_again is not None:
            self.ask_again()

    def queue(self, urgency: Urgency, place: Callable[[], None]) -> None:
        """`place` is called when it is its turn."""
        heappush(self._waiting, (urgency, self._turns, place))
        self._turns += 1

    def next_turn(self) -> None:
        """Of the most urgent, if anybody waits."""
        self.busy = False
        if self._giving:
            return  # by the loop below: without delays a placement ends in the call that began it
        self._giving = True
        while self._waiting and not self.busy:
            heappop(self._waiting)[2]()
        self._giving = False

    def has_more_urgent(self, urgency: Urgency) -> bool:
        """Somebody who waits goes before."""
        return bool(self._waiting) and self._waiting[0][0] < urgency

    @property
    def waiting(self) -> int:
        """Placements that wait for their turn."""
        return len(self._waiting)

    @property
    def outstanding(self) -> int:
        """Requests of its in progress, everywhere."""
        return sum(self._outstanding)

    def _last_minute(self, index: int, now_s: float) -> int:
        dispatched = self._dispatched_s[index]
        while dispatched and dispatched[0] <= now_s - _MINUTE_S:
            dispatched.popleft()
        return len(dispatched)
