"""Which offline request is admitted: Echo's benefit less punishment, per second of the step."""

from collections.abc import Iterable
from typing import NamedTuple

from foretell.kernel.offline import worth


class Offer(NamedTuple):
    """What admitting one waiting offline request would mean."""

    key: int
    cached_tokens: int
    """Prompt tokens whose blocks are still there: work that is done for nothing."""
    computed_tokens: int
    """Tokens that the step would compute for it."""
    lost_tokens: int
    """Tokens beyond the free blocks, which would have to be taken from others."""
    step_s: float
    """Seconds of the step with it."""


def best_of(offers: Iterable[Offer], step_tokens: int) -> Offer | None:
    """The offer with which the step, which has `step_tokens` so far, is worth most per second.

    None where there are no offers. The first of equals wins.
    """

    def value(offer: Offer) -> float:
        _, cached, computed, lost, step_s = offer
        return worth(step_tokens, cached, computed, lost, step_s)

    return max(offers, key=value, default=None)
