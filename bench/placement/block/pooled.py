"""The engines of a cluster as one, in which it does not matter where a request is.

It has the seats, the KV blocks and the token budget of all. A step of it takes as long as one of
the engines takes for its equal share of the batch, fractions of sequences and tokens included.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from foretell.kernel import tables as kernel
from foretell.kernel.step_time import FLOOR, StepTime
from foretell.latency.linear import CompiledStepTime, StepTimeModel
from foretell.model import BatchShape
from foretell.sim import InstanceConfig


@dataclass(frozen=True, slots=True, eq=False)
class PooledStepTime(CompiledStepTime):
    """Another model's arrays."""

    arrays: StepTime

    def packed(self) -> StepTime:
        """The arrays themselves."""
        return self.arrays


def pooled_instance(one: InstanceConfig, engines: int, *, convex: bool) -> InstanceConfig:
    """`engines` such as `one` as a single engine.

    A request still gets no more tokens in a step than one engine could give it. `convex`: steps
    take what `convex_step_time` says.
    """
    engine = one.engine
    model = one.step_time.packed()
    if convex:
        model = convex_step_time(model, engine.max_num_scheduled_tokens)
    pooled = replace(
        engine,
        total_blocks=engines * engine.total_blocks,
        max_num_seqs=engines * engine.max_num_seqs,
        max_num_scheduled_tokens=engines * engine.max_num_scheduled_tokens,
        long_prefill_token_threshold=engine.max_num_scheduled_tokens,
        long_prefill_threshold_when_alone=True,
    )
    return InstanceConfig(pooled, PooledStepTime(pooled_step_time(model, engines)))


def pooled_step_time(model: StepTime, engines: int) -> StepTime:
    """Seconds of a step whose batch `engines` equal engines share equally.

    What is per token or per sequence counts an `engines`-th; the axes of tables count the batch of
    all; what a step costs by itself, and the least it takes, stay. ValueError for a model with a
    table of chunks beside decodes, which says nothing of a fraction of a chunk, or with ranks.
    """
    if model.layout[kernel.MIXED, 1] or model.layout[kernel.RANKS, 1]:
        raise ValueError("only models without tables of mixed steps and of ranks can be pooled")
    coefficients, values = model.coefficients.copy(), model.values.copy()
    layout = model.layout.copy()
    coefficients[1:FLOOR] /= engines
    for table in (kernel.TOKENS, kernel.SEQUENCES, kernel.GRAPH_SIZES, kernel.DECODE):
        start, size = layout[table, :2]
        values[start : start + size] *= engines
    start, rows, columns = layout[kernel.PREFILL, :3]
    seconds = start + rows + columns
    values[seconds : seconds + rows * columns] /= engines  # the kernel multiplies by the chunks
    layout[kernel.DECODE_STEPS] = 0  # was for one engine; the tables are looked up instead
    return StepTime(coefficients, values, layout)


def convex_step_time(model: StepTime, budget_tokens: int) -> StepTime:
    """`model`, with the largest convex curve over a step's tokens that nowhere exceeds its own.

    Between 1 token and `budget_tokens`. Of many steps with as many tokens on average as one, the
    mean time is no less than the curve says of that one (Jensen), however the tokens are spread.
    With a measured curve, which has bends and stairs, that is not so. A model without tables is
    convex.
    """
    if not model.layout[kernel.TOKENS, 1]:
        return model
    tokens = np.arange(1, budget_tokens + 1, dtype=np.float64)
    seconds = [_by_tokens_s(model, count) for count in tokens.tolist()]
    kept = lower_hull(tokens.tolist(), seconds)
    values = np.concatenate([model.values, tokens[kept], np.array(seconds)[kept]])
    layout = model.layout.copy()
    layout[kernel.TOKENS, :2] = len(model.values), len(kept)
    layout[kernel.GRAPH_SIZES] = 0
    layout[kernel.DECODE_STEPS] = 0
    return StepTime(model.coefficients, values, layout)


def _by_tokens_s(model: StepTime, tokens: float) -> float:
    x = kernel.padded(model.values, model.layout, tokens)
    return float(kernel.curve_s(model.values, model.layout, kernel.TOKENS, x))


def lower_hull(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Indices of the points of the lower convex hull; `x` ascends (Andrew's monotone chain)."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1 and _turns_down(x, y, kept[-2], kept[-1], i):
            kept.pop()
        kept.append(i)
    assert all(x[a] < x[b] for a, b in pairwise(kept)), "x does not ascend"
    return kept


def _turns_down(x: Sequence[float], y: Sequence[float], a: int, b: int, c: int) -> bool:
    """The point `b` is on or above the line from `a` to `c`."""
    return (y[b] - y[a]) * (x[c] - x[a]) >= (y[c] - y[a]) * (x[b] - x[a])


def alone_s(model: StepTimeModel, prompt_tokens: int, cached_tokens: int, budget: int) -> float:
    """Seconds that an idle engine takes to a request's first token, in chunks of `budget`."""
    total_s, computed = 0.0, cached_tokens
    while computed < prompt_tokens:
        chunk = min(budget, prompt_tokens - computed)
        pairs = chunk * computed + chunk * (chunk + 1) // 2
        total_s += model.step_s(BatchShape(1, chunk, pairs))
        computed += chunk
    return total_s
