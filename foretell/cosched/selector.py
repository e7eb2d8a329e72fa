"""Which offline request to admit: by Echo's benefit minus punishment, per second of the step."""

from collections.abc import Iterable
from typing import NamedTuple

from foretell.kernel.offline import worth


class Offer(NamedTuple):
    """The consequences of admitting one waiting offline request."""

    key: int
    cached_tokens: int
    """Prompt tokens whose blocks are still cached, which need no computation."""
    computed_tokens: int
    """Tokens that the step would compute for it."""
    lost_tokens: int
    """Tokens beyond the free blocks, whose blocks would be taken from other requests."""
    step_s: float
    """Duration of the step with it, in seconds."""


def best_of(offers: Iterable[Offer], step_tokens: int) -> Offer | None:
    """Return the offer with which a step of `step_tokens` so far is worth most per second.

    None if there are no offers. The first of equals wins.
    """

    def value(offer: Offer) -> float:
        _, cached, computed, lost, step_s = offer
        return worth(step_tokens, cached, computed, lost, step_s)

    return max(offers, key=value, default=None)
