"""How much offline work a step takes without a noticeable delay of online requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from foretell.kernel.compiled import fit, shape_s
from foretell.kernel.layout import SEQUENCE
from foretell.kernel.offline import limit_s
from foretell.kernel.step_time import StepTime
from foretell.latency.linear import sums
from foretell.model import BatchShape
from foretell.model.batch import prefill_pairs


class StepWork(NamedTuple):
    """The work available for a step."""

    online: BatchShape
    """All that online requests can compute in it."""
    contexts: Sequence[int]
    """Context of each running offline request that decodes, in tokens, in the order of service."""
    prefill: tuple[int, int]
    """Computed tokens and remaining tokens of the next offline prompt."""
    tokens: int
    """The token budget of the step."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How long the step may take."""

    slack_s: float = inf
    """The least slack of the online requests with targets; negative if one is late."""
    as_alone: bool = False
    """Whether there are online requests without targets."""
    arrival_s: float = inf
    """How long an online request that arrives during the step may be delayed."""

    def limit_s(self, alone_s: float) -> float:
        """Return the longest step, given that online requests alone would take `alone_s`."""
        return limit_s(alone_s, self.slack_s, self.as_alone, self.arrival_s)


class StepPlan(NamedTuple):
    """The offline work of a step."""

    decodes: int
    """How many of `StepWork.contexts` decode, from the first."""
    prefill_tokens: int
    limit_s: float


def plan_step(model: StepTime, load: StepWork, allowance: Allowance) -> StepPlan:
    """Return the offline work that fits into the step (`cosched_plan.h`)."""
    online, count = sums(load.online), len(load.contexts)
    alone_s = shape_s(model, online) if load.online.tokens else 0.0
    longest_s = allowance.limit_s(alone_s)
    sequences = np.zeros(max(count, 1), SEQUENCE)
    sequences["computed"][:count] = load.contexts
    places = np.arange(max(count, 1), dtype=np.int32)
    decodes, tokens = fit(
        sequences, places, model, online, 0, count, *load.prefill, load.tokens, longest_s
    )
    return StepPlan(decodes, tokens, longest_s)


def with_prefill(shape: BatchShape, tokens: int, computed: int) -> BatchShape:
    """Return `shape` with one more prefill chunk of `tokens`, after `computed` tokens."""
    return BatchShape(
        shape.prefill_seqs + 1,
        shape.prefill_tokens + tokens,
        shape.prefill_pairs + prefill_pairs(tokens, computed),
        shape.decode_seqs,
        shape.decode_pairs,
    )
