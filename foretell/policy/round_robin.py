"""Round robin: each instance in turn."""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.judgement import Judgement, JudgingPolicy, Memory
from foretell.policy.scoring import lowest

_ID = attrgetter("instance_id")


class RoundRobinPolicy(JudgingPolicy):
    """The instance that follows the last chosen one in cyclic order of `instance_id`.

    It remembers the id, not a counter, so that turns stay fair while instances come and go.
    """

    name: ClassVar[str] = "round_robin"
    needs: ClassVar[Needs] = Needs.NOTHING

    measure: ClassVar[str] = "turns until it is its turn"

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """Compare by the place in the cycle. The first choice is random, so that replicas do not
        move in step."""
        cycle = sorted(candidates, key=_ID)
        if memory is None:
            return lowest(cycle, lambda _: 0.0)
        ids = [candidate.instance_id for candidate in cycle]
        first, count = bisect_right(ids, str(memory)), len(ids)
        return Judgement(cycle, [(float((i - first) % count), 1.0) for i in range(count)])

    def remembered(self, chosen: str, judgement: Judgement) -> Memory:
        """Return the chosen id."""
        return chosen
