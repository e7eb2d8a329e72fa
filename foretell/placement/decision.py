"""One choice of an instance, with all that it was made of, so that it can be explained later."""

from collections.abc import Sequence
from typing import NamedTuple

from foretell.model import RequestSpec
from foretell.policy import Candidate, Policy
from foretell.policy.judgement import JudgingPolicy, Memory


class Decision(NamedTuple):
    """What a policy chose, and from what. It refers to what was there anyway."""

    spec: RequestSpec
    """`slo` is what was left of the targets then."""
    candidates: Sequence[Candidate]
    draw: float
    memory: Memory
    """What the policy remembered then."""
    chosen: Candidate
    waited_s: float | None = None
    """Seconds that the request would still have waited where it was; None: it was nowhere."""


def decide(
    policy: Policy, spec: RequestSpec, candidates: Sequence[Candidate], draw: float
) -> Decision:
    """Have the policy choose; `draw` breaks ties."""
    memory = policy.memory if isinstance(policy, JudgingPolicy) else None
    chosen = policy.choose(spec, candidates, draw)
    for candidate in candidates:
        if candidate.instance_id == chosen:
            return Decision(spec, candidates, draw, memory, candidate)
    raise AssertionError(f"{policy.name} chose {chosen}, which is no candidate")
