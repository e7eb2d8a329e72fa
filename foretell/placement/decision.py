"""One choice of an instance, with all that it was made of, so that it can be explained later."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from foretell.model import RequestSpec
from foretell.policy import Candidate, Policy
from foretell.policy.judgement import JudgingPolicy, Memory

if TYPE_CHECKING:  # for who has no numpy, and only reads a configuration
    from foretell.engine.hindsight import PredictionInputs


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
    inputs: "PredictionInputs | None" = None
    """What the predictions were made from."""


def decide(
    policy: Policy,
    spec: RequestSpec,
    candidates: Sequence[Candidate],
    draw: float,
    inputs: "PredictionInputs | None" = None,
) -> Decision:
    """Have the policy choose; `draw` breaks ties, `inputs` are what was predicted from."""
    memory = policy.memory if isinstance(policy, JudgingPolicy) else None
    chosen = policy.choose(spec, candidates, draw)
    for candidate in candidates:
        if candidate.instance_id == chosen:
            return Decision(spec, candidates, draw, memory, candidate, inputs=inputs)
    raise AssertionError(f"{policy.name} chose {chosen}, which is no candidate")
