"""Policies for comparison: published baselines, for simulator and benchmarks.

A cluster file names one of them as `baselines.<name>`; everything else by its own name.
"""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import Load, RequestSpec
from foretell.policy.base import Candidate, Needs, Policy
from foretell.policy.judgement import Judgement, Memory
from foretell.policy.scoring import ScoringPolicy, lowest_known
from foretell.policy.trust import trusted


class RandomPolicy(ScoringPolicy):
    """A uniform choice: the baseline that needs to know nothing."""

    name: ClassVar[str] = "random"
    measure: ClassVar[str] = "nothing: a draw decides"

    def score(self, candidate: Candidate) -> float:
        """All are equal."""
        return 0.0


class MinQpmPolicy(ScoringPolicy):
    """The fewest requests dispatched in the last minute (Block, section 6: "Min QPM"): evens out
    the rate of requests, not the work in them."""

    name: ClassVar[str] = "min_qpm"
    measure: ClassVar[str] = "requests sent there in the last minute"

    def score(self, candidate: Candidate) -> float:
        """Dispatches within the last 60 s."""
        return candidate.dispatched_last_minute


class InfaasPolicy(ScoringPolicy):
    """INFaaS++: the most `(total_blocks - used_blocks) / max(1, running)`.

    As Block's artifact computes it (github AKafakA/Block, `min_infass_load`). The paper's text has
    usedMemory / batchSize, the least of which is not the same: see
    bench/placement/reproduce_block.md.
    """

    name: ClassVar[str] = "infaas"
    needs: ClassVar[Needs] = Needs.LOAD
    measure: ClassVar[str] = "free KV blocks per running request, negated"

    def score(self, candidate: Candidate) -> float | None:
        """The room that running requests have to grow, negated."""
        return None if candidate.load is None else -_free_per_running(candidate.load)


class LlumnixMinusPolicy(ScoringPolicy):
    """Llumnix-, its dispatch rule without its migration: INFaaS++ that counts what queued prompts
    are about to take as taken.

    The most `(total_blocks - used_blocks - waiting_prefill_blocks) / max(1, running)`, as Block's
    artifact computes it (`min_lunmnix_load`); for the paper's text see
    bench/placement/reproduce_block.md.
    """

    name: ClassVar[str] = "llumnix_minus"
    needs: ClassVar[Needs] = Needs.LOAD
    measure: ClassVar[str] = InfaasPolicy.measure

    def score(self, candidate: Candidate) -> float | None:
        """Free less awaited KV blocks per running request, negated."""
        load = candidate.load
        return None if load is None else -_free_per_running(load, load.waiting_prefill_blocks)


class PredictedLatencyPolicy(ScoringPolicy):
    """Block's policy: the least end-to-end latency that the twins foretell. Greedy for the new
    request; what it costs the others shows only in their later answers."""

    name: ClassVar[str] = "predicted_latency"
    needs: ClassVar[Needs] = Needs.PREDICTION
    measure: ClassVar[str] = "predicted end-to-end latency, in seconds"

    def __init__(self, *, late_binding: bool = False) -> None:
        """`late_binding`: with the reviews that only Foretell's own policy has."""
        self.late_binding = late_binding

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """By those predictions that may be compared."""
        answers = map(trusted(candidates), candidates)
        return lowest_known(candidates, [a.e2e_s if a else None for a in answers])


def _free_per_running(load: Load, awaited_blocks: int = 0) -> float:
    """Free KV blocks, less those awaited, per running request; below 0 when more is awaited.

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
