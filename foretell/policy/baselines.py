"""Policies for comparison: published baselines, for simulator and benchmarks.

A cluster file names one of them `baselines.<name>`; elsewhere the name alone is used.
"""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import Load, RequestSpec
from foretell.policy.base import Candidate, Needs, Policy
from foretell.policy.judgement import Judgement, Memory
from foretell.policy.scoring import ScoringPolicy, lowest_known
from foretell.policy.trust import trusted


class RandomPolicy(ScoringPolicy):
    """A uniformly random choice: the baseline without any information."""

    name: ClassVar[str] = "random"
    measure: ClassVar[str] = "nothing: a draw decides"

    def score(self, candidate: Candidate) -> float:
        """Return the same score for all."""
        return 0.0


class MinQpmPolicy(ScoringPolicy):
    """The fewest requests dispatched in the last minute (Block, section 6: "Min QPM"). It balances
    the request rate, not the work."""

    name: ClassVar[str] = "min_qpm"
    measure: ClassVar[str] = "requests sent there in the last minute"

    def score(self, candidate: Candidate) -> float:
        """Return the number of dispatches within the last 60 s."""
        return candidate.dispatched_last_minute


class InfaasPolicy(ScoringPolicy):
    """INFaaS++: the largest `(total_blocks - used_blocks) / max(1, running)`.

    This is what Block's artifact computes (github AKafakA/Block, `min_infass_load`). The paper's
    text minimizes usedMemory / batchSize, which is not the same.
    """

    name: ClassVar[str] = "infaas"
    needs: ClassVar[Needs] = Needs.LOAD
    measure: ClassVar[str] = "free KV blocks per running request, negated"

    def score(self, candidate: Candidate) -> float | None:
        """Return the free KV blocks per running request, negated."""
        return None if candidate.load is None else -_free_per_running(candidate.load)


class LlumnixMinusPolicy(ScoringPolicy):
    """Llumnix-, the dispatch rule of Llumnix without its migration: INFaaS++ that also counts the
    blocks that queued prompts need as used.

    The largest `(total_blocks - used_blocks - waiting_prefill_blocks) / max(1, running)`, as
    Block's artifact computes it (`min_lunmnix_load`); the paper's text minimizes
    (usedMemory + prefillMemory) / batchSize.
    """

    name: ClassVar[str] = "llumnix_minus"
    needs: ClassVar[Needs] = Needs.LOAD
    measure: ClassVar[str] = InfaasPolicy.measure

    def score(self, candidate: Candidate) -> float | None:
        """Return the free KV blocks less the awaited ones, per running request, negated."""
        load = candidate.load
        return None if load is None else -_free_per_running(load, load.waiting_prefill_blocks)


class PredictedLatencyPolicy(ScoringPolicy):
    """Block's policy: the lowest end-to-end latency that the twins predict. It optimizes the new
    request alone and ignores what it costs the others."""

    name: ClassVar[str] = "predicted_latency"
    needs: ClassVar[Needs] = Needs.PREDICTION
    measure: ClassVar[str] = "predicted end-to-end latency, in seconds"

    def __init__(self, *, late_binding: bool = False) -> None:
        """`late_binding`: review choices, as otherwise only Foretell's own policies do."""
        self.late_binding = late_binding

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """Compare by the predictions that are trusted."""
        answers = map(trusted(candidates), candidates)
        return lowest_known(candidates, [a.e2e_s if a else None for a in answers])


def _free_per_running(load: Load, awaited_blocks: int = 0) -> float:
    """The free KV blocks less the awaited ones, per running request; may be negative.

    Llumnix calls it freeness (arXiv 2406.03243).
    """
    return (load.total_blocks - load.used_blocks - awaited_blocks) / max(1, load.running)


BASELINES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        InfaasPolicy,
        LlumnixMinusPolicy,
        MinQpmPolicy,
        PredictedLatencyPolicy,
        RandomPolicy,
    )
}
