"""One choice of an instance with all its inputs, so that it can be explained later."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from foretell.model import RequestSpec
from foretell.policy import Candidate, Policy
from foretell.policy.judgement import JudgingPolicy, Memory

if TYPE_CHECKING:  # configurations can be read without numpy
    from foretell.engine.hindsight import PredictionInputs


class Decision(NamedTuple):
    """What a policy chose, and from what. It holds references and copies nothing."""

    spec: RequestSpec
    """`slo` is what was left of the targets at that time."""
    candidates: Sequence[Candidate]
    draw: float
    memory: Memory
    """What the policy remembered at that time."""
    chosen: Candidate
    waited_s: float | None = None
    """After a recall: the seconds that the request would still have waited; otherwise None."""
    inputs: "PredictionInputs | None" = None
    """What the predictions were made from."""


def decide(
    policy: Policy,
    spec: RequestSpec,
    candidates: Sequence[Candidate],
    draw: float,
    inputs: "PredictionInputs | None" = None,
) -> Decision:
    """Let the policy choose; `draw` breaks ties, `inputs` are the prediction inputs."""
    memory = policy.memory if isinstance(policy, JudgingPolicy) else None
    chosen = policy.choose(spec, candidates, draw)
    for candidate in candidates:
        if candidate.instance_id == chosen:
            return Decision(spec, candidates, draw, memory, candidate, inputs=inputs)
    raise AssertionError(f"{policy.name} chose {chosen}, which is no candidate")
