"""INFaaS++: the most free KV memory per running request (a baseline of Llumnix and of Block)."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import Load, RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.judgement import Judgement, JudgingPolicy, Memory
from foretell.policy.scoring import lowest_known


class InfaasPolicy(JudgingPolicy):
    """The most `(total_blocks - used_blocks) / max(1, running)`.

    As Block's artifact computes it (github AKafakA/Block, `min_infass_load`). The paper's text has
    usedMemory / batchSize, the least of which is not the same: see
    bench/placement/reproduce_block.md.
    """

    name: ClassVar[str] = "infaas"
    needs: ClassVar[Needs] = Needs.LOAD
    measure: ClassVar[str] = "free KV blocks per running request, negated"

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """By the room that running requests have to grow."""
        return lowest_known(candidates, [crowding(candidate) for candidate in candidates])


def crowding(candidate: Candidate) -> float | None:
    """Free KV blocks per running request, negated; None when the load is unknown."""
    return None if candidate.load is None else -free_per_running(candidate.load)


def free_per_running(load: Load, awaited_blocks: int = 0) -> float:
    """Free KV blocks, less those awaited, per running request; below 0 when more is awaited.

    Llumnix calls it freeness (arXiv 2406.03243).
    """
    return (load.total_blocks - load.used_blocks - awaited_blocks) / max(1, load.running)
