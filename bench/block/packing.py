"""The most that engines full of requests could answer, if requests could be cut to fit."""

from collections.abc import Iterable

from bench.block.pooled import PooledStepTime, convex_step_time, pooled_step_time
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
    are seats. A step decodes for all of these, and computes as much of prompts as keeps their
    number; it takes what `convex_step_time` says.
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
    shape = (
        len(arrivals) * ending,
        sum(a.prompt_tokens for a in arrivals) * ending,
        sum(a.prompt_tokens * (a.prompt_tokens + 1) / 2 for a in arrivals) * ending,
        running,
        running * contexts / steps,
    )
    convex = convex_step_time(one.step_time.packed(), engine.max_num_scheduled_tokens)
    model = PooledStepTime(pooled_step_time(convex, _MANY))
    step_s = model.step_s(BatchShape(*(round(_MANY * x) for x in shape)))
    return engines * running / step_s
