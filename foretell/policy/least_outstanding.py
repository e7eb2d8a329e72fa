"""Least outstanding: the fewest requests in progress, as this scheduler counts them."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.scoring import pick_lowest


class LeastOutstandingPolicy:
    """Needs no predictor; blind to what other schedulers send and to how long requests are."""

    name: ClassVar[str] = "least_outstanding"
    needs: ClassVar[Needs] = Needs.NOTHING

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate with the fewest outstanding requests."""
        return pick_lowest(candidates, lambda c: c.outstanding, draw)
