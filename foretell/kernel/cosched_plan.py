"""How long a step may take beside online requests, and how much offline work fits into it.

The arithmetic of `foretell.cosched.plan`, over the arrays of the kernel.
"""

import numpy as np

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import State
from foretell.kernel.offline import ARRIVAL_SHARE, ARRIVAL_STEPS, limit_s, slack_s
from foretell.kernel.step_time import StepTime, Sums, step_s

_limit_s, _slack_s = compiled(limit_s), compiled(slack_s)


@inlined
def left_of(state: State, slot: int) -> int:
    """Tokens that a running request could compute."""
    seq = state.sequences[slot]
    return int(seq.prompt + seq.output + seq.placeholders - seq.computed)


@inlined
def decodes_now(state: State, slot: int) -> bool:
    """Whether a running request has had the last of what is known computed, as vLLM sees it."""
    return bool(state.sequences[slot].is_prefill_chunk == 0)


@compiled
def longest_s(
    state: State, model: StepTime, online: int, arriving: int, shape: Sums, now_s: float
) -> float:
    """How long the step may take, by the slack of online requests."""
    engine, least_s, as_alone = state.engine, np.inf, False
    slot = engine.head
    for i in range(online + arriving):
        if i < online:
            seq = state.sequences[state.running[i]]
        else:
            seq = state.sequences[slot]
            slot = seq.next
        if seq.ttft_target_s == 0.0 and seq.tpot_target_s == 0.0:
            as_alone = True
        else:
            ttft_s, tpot_s = _target(seq.ttft_target_s), _target(seq.tpot_target_s)
            waited_s = now_s - seq.arrival_s
            least_s = min(least_s, _slack_s(ttft_s, tpot_s, waited_s, seq.output))
    alone_s = shape_s(model, shape) if shape.prefill_tokens + shape.decode_seqs > 0 else 0.0
    arrival_s = np.inf
    if engine.online_ttft_s < np.inf:
        shortest_s = ARRIVAL_STEPS * step_s(model, 0, 0, 0, 1, 1, 0)
        arrival_s = max(shortest_s, engine.online_ttft_s * ARRIVAL_SHARE)
    return _limit_s(alone_s, least_s, as_alone, arrival_s)


@inlined
def _target(seconds: float) -> float:
    return seconds if seconds > 0.0 else np.inf


@compiled
def fit(
    state: State,
    model: StepTime,
    online: Sums,
    running: tuple[int, int],
    prefill: tuple[int, int],
    most_s: float,
) -> tuple[int, int]:
    """Offline requests that decode, and tokens of offline prompts: `foretell.cosched.plan_step`.

    `running`: the place of the first offline request, and how many decode; `prefill`: tokens
    computed of the prompt that would be next, and tokens wanted.
    """
    first, resident = running
    computed, wanted = prefill
    used = online.prefill_tokens + online.decode_seqs
    left, idle = state.engine.max_num_scheduled_tokens - used, used == 0
    count = most = min(resident, max(0, left))
    if most_s < np.inf:
        count = 0
        while count < most:
            middle = (count + most) // 2
            if most_s < shape_s(model, with_decodes(state, online, first, middle + 1)):
                most = middle
            else:
                count = middle + 1
        if idle:
            count = max(count, min(1, resident))
    shape = with_decodes(state, online, first, count)
    tokens = most = max(0, min(wanted, left - count))
    if most > 0 and most_s < np.inf:
        tokens = 0
        while tokens < most:
            middle = (tokens + most) // 2
            if most_s < shape_s(model, with_prefill(shape, middle + 1, computed)):
                most = middle
            else:
                tokens = middle + 1
        if idle and count == 0:
            tokens = max(tokens, 1)
    return count, tokens


@inlined
def pairs_of(tokens: int, computed: int) -> int:
    return tokens * computed + tokens * (tokens + 1) // 2


@inlined
def shape_s(model: StepTime, shape: Sums) -> float:
    return step_s(
        model,
        shape.prefill_seqs,
        shape.prefill_tokens,
        shape.prefill_pairs,
        shape.decode_seqs,
        shape.decode_pairs,
        shape.draft_tokens,
    )


@compiled
def with_decodes(state: State, shape: Sums, first: int, count: int) -> Sums:
    pairs = 0
    for i in range(first, first + count):
        pairs += state.sequences[state.running[i]].computed + 1
    return Sums(
        shape.prefill_seqs,
        shape.prefill_tokens,
        shape.prefill_pairs,
        shape.decode_seqs + count,
        shape.decode_pairs + pairs,
        shape.draft_tokens,
    )


@inlined
def with_prefill(shape: Sums, tokens: int, computed: int) -> Sums:
    return Sums(
        shape.prefill_seqs + 1,
        shape.prefill_tokens + tokens,
        shape.prefill_pairs + pairs_of(tokens, computed),
        shape.decode_seqs,
        shape.decode_pairs,
        shape.draft_tokens,
    )
