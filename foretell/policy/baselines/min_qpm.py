"""Min QPM: the fewest requests dispatched in the last minute (Block, section 6: "Min QPM")."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.scoring import pick_lowest


class MinQpmPolicy:
    """Evens out the rate of requests, not the work in them."""

    name: ClassVar[str] = "min_qpm"
    needs: ClassVar[Needs] = Needs.NOTHING

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate with the fewest dispatches within the last 60 s."""
        return pick_lowest(candidates, lambda c: c.dispatched_last_minute, draw)
