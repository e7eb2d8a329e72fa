"""Llumnix-: Llumnix's dispatch rule without its migration, a baseline of the Block paper."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.baselines.infaas import free_per_running
from foretell.policy.judgement import Judgement, JudgingPolicy, Memory
from foretell.policy.scoring import lowest_known


class LlumnixMinusPolicy(JudgingPolicy):
    """The most `(total_blocks - used_blocks - waiting_prefill_blocks) / max(1, running)`.

    INFaaS++ that counts what queued prompts are about to take as taken. As Block's artifact
    computes it (github AKafakA/Block, `min_lunmnix_load`); for the paper's text see
    bench/placement/reproduce_block.md.
    """

    name: ClassVar[str] = "llumnix_minus"
    needs: ClassVar[Needs] = Needs.LOAD
    measure: ClassVar[str] = "free KV blocks per running request, negated"

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """By the room that running requests have to grow."""
        return lowest_known(candidates, [queued_crowding(candidate) for candidate in candidates])


def queued_crowding(candidate: Candidate) -> float | None:
    """Free less awaited KV blocks per running request, negated; None: the load is unknown."""
    load = candidate.load
    return None if load is None else -free_per_running(load, load.waiting_prefill_blocks)
