"""How much offline work a step takes: as much as online requests do not notice."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from foretell.kernel.offline import limit_s
from foretell.model import BatchShape
from foretell.model.batch import prefill_pairs

StepSeconds = Callable[[BatchShape], float]


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


def plan_step(step_s: StepSeconds, load: Load, allowance: Allowance) -> StepPlan:
    """The offline work that fits into the step; decodes come first, as they hold memory.

    An engine without online work computes something in any case.
    """
    online, left = load.online, load.tokens - load.online.tokens
    alone_s = step_s(online) if online.tokens else 0.0
    longest_s = allowance.limit_s(alone_s)
    idle = not online.tokens
    decodes = min(len(load.contexts), max(0, left))
    if longest_s < inf:
        shapes = _Decodes(online, load.contexts[:decodes])
        decodes = _most(decodes, lambda count: step_s(shapes.of(count)), longest_s)
        decodes = max(decodes, min(1, len(load.contexts)) if idle else 0)
    shape = _Decodes(online, load.contexts[:decodes]).of(decodes)
    computed, wanted = load.prefill
    most = max(0, min(wanted, left - decodes))
    if most and longest_s < inf:
        fit = _most(most, lambda count: step_s(with_prefill(shape, count, computed)), longest_s)
        most = max(fit, 1 if idle and not decodes else 0)
    return StepPlan(decodes, most, longest_s)


def with_prefill(shape: BatchShape, tokens: int, computed: int) -> BatchShape:
    """`shape` with one more prefill chunk, behind `computed` tokens."""
    return BatchShape(
        shape.prefill_seqs + 1,
        shape.prefill_tokens + tokens,
        shape.prefill_pairs + prefill_pairs(tokens, computed),
        shape.decode_seqs,
        shape.decode_pairs,
    )


class _Decodes:
    """A step with the first of some decodes."""

    def __init__(self, online: BatchShape, contexts: Sequence[int]) -> None:
        self._online = online
        self._pairs = [0]
        for context in contexts:
            self._pairs.append(self._pairs[-1] + context + 1)

    def of(self, count: int) -> BatchShape:
        online = self._online
        return BatchShape(
            online.prefill_seqs,
            online.prefill_tokens,
            online.prefill_pairs,
            online.decode_seqs + count,
            online.decode_pairs + self._pairs[count],
        )


def _most(limit: int, seconds: Callable[[int], float], limit_s: float) -> int:
    """The largest count up to `limit` that takes no longer; seconds grow with the count."""
    return bisect_right(range(1, limit + 1), limit_s, key=seconds)
