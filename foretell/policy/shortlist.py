"""The shortlist: which instances to predict for if there are too many to predict for all.

Predicting every request on every instance would cost (instances)^2 as a cluster grows, and the best
of a few well-chosen candidates is nearly the best of all. The choice therefore has two levels: a
few candidates by what the scheduler knows already, then a prediction for each of them.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

SPREAD = 4
"""The number of instances that are drawn for each candidate wanted."""

Key = TypeVar("Key")


class Known(NamedTuple):
    """What is known of an instance without a prediction."""

    own: int
    """This scheduler's requests in progress there."""
    requests: int | None
    """All requests there; None: no recent load is known."""
    new: bool = False
    """It was never on a shortlist."""


def shortlist(
    instances: Sequence[Key],
    wanted: int,
    known: Callable[[Key], Known],
    random: Callable[[], float],
    spread: int = SPREAD,
) -> Sequence[Key]:
    """Return `wanted` of `instances`, the most promising first; all, in their order, if there are
    no more.

    `spread * wanted` instances are drawn uniformly, and those with the fewest requests are chosen.
    A new instance is assumed to have no requests but this scheduler's own. An instance without a
    recent load is assumed to be as busy as the others, scaled by this scheduler's own requests
    there, as in `scoring.lowest_known`. `random` draws uniformly from [0, 1).

    This is the power of d choices (Mitzenmacher, "The Power of Two Choices in Randomized Load
    Balancing", IEEE TPDS 12(10), 2001): the best of a few drawn at random is nearly as good as the
    best of all. The draw must be random because old information misleads all schedulers alike: all
    of them would send to the instance with the least load in old reports (Mitzenmacher, "How Useful
    Is Old Information?", IEEE TPDS 11(1), 2000). The cost is O(wanted) for any number of instances.
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
    """Draw `wanted` of `count` numbers without repetition (Floyd's algorithm); their order is not
    random."""
    chosen: dict[int, None] = {}
    for last in range(max(0, count - wanted), count):
        number = int(random() * (last + 1))
        chosen[last if number in chosen else number] = None
    return list(chosen)
