"""Random: a uniform choice. The baseline that needs to know nothing."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs


class RandomPolicy:
    """Every candidate is equally likely, whatever its load."""

    name: ClassVar[str] = "random"
    needs: ClassVar[Needs] = Needs.NOTHING

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate at `draw` of the way through the list."""
        return candidates[int(draw * len(candidates))].instance_id
