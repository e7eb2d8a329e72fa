"""One scheduler replica in virtual time: its policy, and what it alone knows."""

from collections import deque
from collections.abc import Callable, Sequence

from foretell.model import Load, Prediction, RequestSpec
from foretell.policy import Candidate, Needs, Policy
from foretell.policy.shortlist import Shortlist

_MINUTE_S = 60.0

Answer = tuple[Load | None, Prediction | None]
"""Of a predictor; nothing where it is silent."""

SILENCE: Answer = (None, None)


class SimScheduler:
    """Stateless but for its counts, as `services.scheduler` is."""

    def __init__(self, policy: Policy, instances: int, candidates: int = 0) -> None:
        """`candidates`: the most that are asked for one placement; 0: all."""
        self._policy = policy
        self._shortlist = Shortlist[int](candidates)
        self.asks = policy.needs is not Needs.NOTHING
        """It asks predictors before it chooses, and placements that ask take turns."""
        self.needs = policy.needs
        self.busy = False
        """A placement is waiting for answers."""
        self.waiting: deque[Callable[[], None]] = deque()
        """The placements behind it."""
        self._outstanding = [0] * instances
        self._dispatched_s: list[deque[float]] = [deque() for _ in range(instances)]

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
    ) -> int:
        """The instance for `spec` among those in `answers`; `names` are all instances'."""
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
        chosen = self._policy.choose(spec, candidates, draw)
        index = next(index for index, _ in answers if names[index] == chosen)
        self._outstanding[index] += 1
        self._dispatched_s[index].append(now_s)
        return index

    def ended(self, index: int) -> None:
        """A request that it sent there has ended, somehow."""
        self._outstanding[index] -= 1

    @property
    def outstanding(self) -> int:
        """Requests of its in progress, everywhere."""
        return sum(self._outstanding)

    def _last_minute(self, index: int, now_s: float) -> int:
        dispatched = self._dispatched_s[index]
        while dispatched and dispatched[0] <= now_s - _MINUTE_S:
            dispatched.popleft()
        return len(dispatched)
