"""How much offline work a step takes: as much as online requests do not notice."""

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


class Load(NamedTuple):
    """What is there to be computed in a step."""

    online: BatchShape
    """All that online requests could compute in it."""
    contexts: Sequence[int]
    """Context of each running offline request that decodes, in tokens, in the order of service."""
    prefill: tuple[int, int]
    """Tokens computed and tokens left of the offline prompt that would be next."""
    tokens: int
    """Most tokens of the step."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How long the step may take."""

    slack_s: float = inf
    """The least slack of the online requests with targets; negative where one is late."""
    as_alone: bool = False
    """Whether there are online requests without targets."""
    arrival_s: float = inf
    """What an online request that comes during the step may lose."""

    def limit_s(self, alone_s: float) -> float:
        """The longest step, where online requests alone would take `alone_s`."""
        return limit_s(alone_s, self.slack_s, self.as_alone, self.arrival_s)


class StepPlan(NamedTuple):
    """What offline requests get of a step."""

    decodes: int
    """The first so many of `Load.contexts` decode."""
    prefill_tokens: int
    limit_s: float


def plan_step(model: StepTime, load: Load, allowance: Allowance) -> StepPlan:
    """The offline work that fits into the step (`cosched_plan.h`)."""
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
    """`shape` with one more prefill chunk, behind `computed` tokens."""
    return BatchShape(
        shape.prefill_seqs + 1,
        shape.prefill_tokens + tokens,
        shape.prefill_pairs + prefill_pairs(tokens, computed),
        shape.decode_seqs,
        shape.decode_pairs,
    )
