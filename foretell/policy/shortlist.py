"""The shortlist of instances whose predictors are asked, in a cluster with too many to ask all.

Asking every predictor about every request costs the cluster (instances)^2 as it grows, and the
best of a few well-chosen candidates is nearly the best of all. So the choice has two levels: first
a few candidates by what a scheduler knows without asking, then a prediction for each of those.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

SPREAD = 4
"""Instances looked at for each candidate wanted."""

Key = TypeVar("Key")


class Known(NamedTuple):
    """What is known of an instance without asking."""

    own: int
    """This scheduler's requests there."""
    requests: int | None
    """All requests there; None: nothing was heard of late."""
    new: bool = False
    """It was never asked."""


def shortlist(
    instances: Sequence[Key],
    wanted: int,
    known: Callable[[Key], Known],
    random: Callable[[], float],
    spread: int = SPREAD,
) -> Sequence[Key]:
    """Those of `instances` to ask, the most promising first: `wanted` of them, or all, in their
    order, where there are no more.

    `spread` times as many are drawn uniformly, and of those the ones with the fewest requests are
    asked. Who was never asked is taken for an idle one, which new instances are. Who has not
    reported of late is taken for as busy as the others are, by its share of this scheduler's own
    requests, as in `scoring.lowest_known`. `random` draws uniformly from [0, 1).

    That is the power of d choices (Mitzenmacher, "The Power of Two Choices in Randomized Load
    Balancing", IEEE TPDS 12(10), 2001): the best of a few drawn at random is nearly as good as the
    best of all. Drawn at random it must be, as old information misleads all schedulers alike: the
    least loaded of all by old reports is where everybody goes (Mitzenmacher, "How Useful Is Old
    Information?", IEEE TPDS 11(1), 2000). A decision costs O(wanted), whatever there are.
    """
    count = len(instances)
    if count <= wanted:
        return instances
    drawn = [instances[i] for i in _drawn(count, max(1, spread) * wanted, random)]
    found = [known(key) for key in drawn]
    loads = [(each.own, each.requests) for each in found if each.requests is not None]
    typical_own = median([own for own, _ in loads]) if loads else 0.0
    typical = median([requests for _, requests in loads]) if loads else 1.0

    def requests(each: Known) -> float:
        if each.requests is not None:
            return each.requests
        return each.own if each.new else typical * (1 + each.own) / (1 + typical_own)

    scored = [(requests(each), random(), place) for place, each in enumerate(found)]
    scored.sort()
    return [drawn[place] for _, _, place in scored[:wanted]]


def _drawn(count: int, wanted: int, random: Callable[[], float]) -> list[int]:
    """`wanted` of `count` numbers without repetition, in no random order (Floyd's algorithm)."""
    chosen: dict[int, None] = {}
    for last in range(max(0, count - wanted), count):
        number = int(random() * (last + 1))
        chosen[last if number in chosen else number] = None
    return list(chosen)
