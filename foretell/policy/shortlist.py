"""The shortlist of instances whose predictors are asked, in a cluster with too many to ask all.

Asking every predictor about every request costs the cluster (instances)^2 as it grows, and the
best of a few well-chosen candidates is nearly the best of all. So the choice has two levels: first
a few candidates by what a scheduler knows without asking, then a prediction for each of those.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import Generic, TypeVar

from foretell.model import Load

STALE_S = 10.0
"""Age beyond which a load that a predictor once reported says nothing."""
SPREAD = 4
"""Instances looked at for each candidate wanted."""

Key = TypeVar("Key", bound=Hashable)


_Heard = tuple[float, Load | None, int]
"""The time of an answer, the load that it told, and this scheduler's own requests at that time."""
_NEVER: _Heard = -math.inf, None, 0


class Shortlist(Generic[Key]):
    """One scheduler's choice of `candidates` instances to ask; 0: all.

    `SPREAD` times as many are drawn uniformly, and of those the ones with the fewest requests are
    asked: as many as their predictors last reported, and this scheduler's own since. Who was never
    asked is taken for an idle one, which new instances are. Who has not reported of late is taken
    for as busy as the others are, by its share of this scheduler's own requests, as in
    `scoring.pick_lowest_known`.

    That is the power of d choices (Mitzenmacher, "The Power of Two Choices in Randomized Load
    Balancing", IEEE TPDS 12(10), 2001): the best of a few drawn at random is nearly as good as the
    best of all. Drawn at random it must be, as old information misleads all schedulers alike: the
    least loaded of all by old reports is where everybody goes (Mitzenmacher, "How Useful Is Old
    Information?", IEEE TPDS 11(1), 2000). A decision costs O(candidates), whatever there are.
    """

    def __init__(self, candidates: int, spread: int = SPREAD) -> None:
        self.candidates = candidates
        self._spread = max(1, spread)
        self._heard: dict[Key, _Heard] = {}

    def pick(
        self,
        instances: Sequence[Key],
        outstanding: Callable[[Key], int],
        random: Callable[[], float],
        now_s: float,
        most: int = 0,
    ) -> Sequence[Key]:
        """Those of `instances` to ask, the most promising first; all of them, in their order, where
        no more than `candidates` are there, or than `most` where that is above 0 and fewer.

        `outstanding` are this scheduler's requests in progress at each; `random` draws uniformly
        from [0, 1).
        """
        count = len(instances)
        wanted = min(self.candidates or count, most or count)
        if count <= wanted:
            return instances
        self._forget_leavers(count)
        drawn = [instances[i] for i in _drawn(count, self._spread * wanted, random)]
        known: list[tuple[int, int]] = []
        requests: list[tuple[int, int | None]] = []
        for key in drawn:
            own, heard = outstanding(key), self._heard.get(key)
            if heard is None:
                requests.append((own, own))
                continue
            at_s, load, own_then = heard
            if load is None or now_s - at_s > STALE_S:
                requests.append((own, None))
            else:
                reported = load.running + load.waiting + load.reserved
                known.append((own, max(0, reported - own_then + own)))
                requests.append(known[-1])
        typical_own = median([own for own, _ in known]) if known else 0.0
        typical = median([count for _, count in known]) if known else 1.0
        scored = [
            (typical * (1 + own) / (1 + typical_own) if count is None else count, random(), place)
            for place, (own, count) in enumerate(requests)
        ]
        scored.sort()
        asked = [drawn[place] for _, _, place in scored[:wanted]]
        for key in asked:
            self._heard.setdefault(key, _NEVER)
        return asked

    def learn(self, key: Key, load: Load, outstanding: int, now_s: float) -> None:
        """An answer of a predictor told its instance's load."""
        self._heard[key] = now_s, load, outstanding

    def _forget_leavers(self, count: int) -> None:
        """Bound what is kept: instances come and go. What is forgotten is soon heard again."""
        if len(self._heard) > 2 * count + 64:
            self._heard.clear()


def _drawn(count: int, wanted: int, random: Callable[[], float]) -> list[int]:
    """`wanted` of `count` numbers without repetition, in no random order (Floyd's algorithm)."""
    chosen: dict[int, None] = {}
    for last in range(max(0, count - wanted), count):
        number = int(random() * (last + 1))
        chosen[last if number in chosen else number] = None
    return list(chosen)
