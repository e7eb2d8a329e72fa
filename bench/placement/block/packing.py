"""The most that engines full of requests could answer, if requests could be cut to fit."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.placement.block.pooled import PooledStepTime, convex_step_time, pooled_step_time
from foretell.kernel import tables as kernel
from foretell.kernel.step_time import StepTime
from foretell.model import BatchShape
from foretell.sim import InstanceConfig
from foretell.workload import Arrival

_MANY = 1000
"""Engines that are looked at together, so that numbers of sequences may be fractions."""


def packed_tokens_per_s(arrivals: Iterable[Arrival], one: InstanceConfig, engines: int) -> float:
    """Output tokens a second of `engines` such as `one` that are always full; no prefixes cached.

    A request of p prompt and n output tokens holds the blocks of p + k tokens in its k-th decode
    step. If every block were in use at every instant, and nothing computed twice, so many would
    run at once as blocks are there for their mean over requests and steps, and no more than there
    are seats. A step decodes for all of these, as fast as convex steps do, and computes as much of
    prompts as keeps their number, for which it takes `prompts_s` longer.

    No placement and no order makes more of the same requests, however unlike engines and steps
    are, but for attention, whose table is only nearly linear: a step's seconds are no less than a
    line over its decodes plus what its prompts add, so all steps together take no less than the
    line's constant for each step, and steps are no fewer than all block-steps over the blocks of
    an engine, and all decodes over its seats.
    """
    arrivals, engine = list(arrivals), one.engine
    steps = sum(a.output_tokens for a in arrivals)
    block_steps = sum(
        engine.blocks_for(a.prompt_tokens + k) for a in arrivals for k in range(a.output_tokens)
    )
    contexts = sum(
        a.output_tokens * (a.prompt_tokens + (a.output_tokens + 1) / 2) for a in arrivals
    )
    running = min(engine.max_num_seqs, engine.total_blocks * steps / block_steps)
    ending = running / steps  # of each request, in a step: its share of all requests that run
    prompts = [a.prompt_tokens for a in arrivals]
    tokens = sum(prompts) * ending
    shape = (
        len(arrivals) * ending,
        tokens,
        sum(p * (p + 1) / 2 for p in prompts) * ending,
        running,
        running * contexts / steps,
    )
    packed = one.step_time.packed()
    convex = convex_step_time(packed, engine.max_num_scheduled_tokens)
    model = PooledStepTime(pooled_step_time(convex, _MANY))
    step_s = model.step_s(BatchShape(*(round(_MANY * x) for x in shape)))
    # Of that, what tokens cost besides attention, with prompts in crumbs beside the decodes.
    step_s -= _by_tokens_s(convex, running + tokens) - _by_tokens_s(convex, running)
    limits = engine.max_num_seqs, engine.max_num_scheduled_tokens
    step_s += ending * prompts_s(prompts, packed, convex, running, *limits)
    return engines * running / step_s


def prompts_s(
    prompts: Sequence[int],
    model: StepTime,
    convex: StepTime,
    running: float,
    seats: int,
    budget: int,
) -> float:
    """The least that these prompts add to steps, attention apart, however they are batched.

    Let f be a step's seconds by its tokens, and L the line that touches the convex curve at
    `running`, which is nowhere above f. Engines compute a prompt in one piece, unless the step's
    budget ends before it. So one of p tokens is in a step of k >= p tokens of prompts beside some
    n decodes, and p / k of what f(n + k) is above L(n) is because of it; or all but the rest r of
    it is in steps that use up the budget.
    """
    seconds = np.array([_by_tokens_s(model, float(t)) for t in range(1, budget + 1)])
    here, ahead = _by_tokens_s(convex, running), _by_tokens_s(convex, running + 1e-3)
    line = here + (ahead - here) / 1e-3 * (np.arange(seats + 1) - running)
    each = np.full(budget + 1, np.inf)  # by k: seconds for each token
    for k in range(1, budget + 1):
        decodes = np.arange(min(seats, budget - k) + 1)
        each[k] = ((seconds[decodes + k - 1] - line[decodes]) / k).min()
    at_least = np.minimum.accumulate(each[::-1])[::-1]  # by p: of all k >= p
    full = float(((seconds[-1] - line) / (budget - np.arange(seats + 1))).min())
    return sum(_prompt_s(p, at_least, full, budget) for p in prompts)


def _prompt_s(prompt: int, at_least: NDArray[np.float64], full: float, budget: int) -> float:
    rest = np.arange(1, min(prompt, budget) + 1)
    return float(((prompt - rest) * full + rest * at_least[rest]).min())


def _by_tokens_s(model: StepTime, tokens: float) -> float:
    """What depends on a step's tokens alone; 0 where a model is linear."""
    if not model.layout[kernel.TOKENS, 1]:
        return 0.0
    x = kernel.padded(model.values, model.layout, tokens)
    return float(kernel.curve_s(model.values, model.layout, kernel.TOKENS, x))
