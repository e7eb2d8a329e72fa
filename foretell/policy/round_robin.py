"""Round robin: each instance in turn."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs


class RoundRobinPolicy:
    """The instance that follows the last chosen one in cyclic order of `instance_id`.

    Remembering the id, not a counter, keeps the turn fair while instances come and go.
    """

    name: ClassVar[str] = "round_robin"
    needs: ClassVar[Needs] = Needs.NOTHING

    def __init__(self) -> None:
        self._last: str | None = None

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The next instance; the first choice falls on `draw`, so that replicas do not march."""
        ids = sorted(candidate.instance_id for candidate in candidates)
        if self._last is None:
            index = int(draw * len(ids))
        else:
            index = bisect_right(ids, self._last) % len(ids)
        self._last = ids[index]
        return self._last
