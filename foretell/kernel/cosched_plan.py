"""How long a step may take beside online requests, and how much offline work fits into it."""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import Record, State
from foretell.kernel.offline import arrival_s, limit_s, slack_s
from foretell.kernel.step_time import StepTime, Sums, step_s

_arrival_s, _limit_s, _slack_s = compiled(arrival_s), compiled(limit_s), compiled(slack_s)


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
            ttft_s, tpot_s = ttft_due_s(seq), _due_s(seq.tpot_target_s)
            waited_s = now_s - seq.arrival_s
            least_s = min(least_s, _slack_s(ttft_s, tpot_s, waited_s, seq.output))
    alone_s = shape_s(model, shape) if shape.prefill_tokens + shape.decode_seqs > 0 else 0.0
    comes_s = np.inf
    if engine.online_ttft_s < np.inf:
        comes_s = _arrival_s(step_s(model, 0, 0, 0, 1, 1, 0), engine.online_ttft_s)
    return _limit_s(alone_s, least_s, as_alone, comes_s)


@inlined
def ttft_due_s(seq: Record) -> float:
    """The TTFT from which a request's later tokens are due: its target, or what it was."""
    if seq.first_token_s < np.inf:
        return float(seq.first_token_s - seq.arrival_s)
    return _due_s(seq.ttft_target_s)


@inlined
def _due_s(target_s: float) -> float:
    return float(target_s) if target_s > 0.0 else np.inf


@compiled
def fit(
    sequences: NDArray[np.void],
    running: NDArray[np.int32],
    model: StepTime,
    online: Sums,
    offline: tuple[int, int],
    prefill: tuple[int, int],
    budget: int,
    most_s: float,
) -> tuple[int, int]:
    """How many offline requests decode, and tokens of offline prompts, in a step of `budget`.

    Decodes come first, as they hold memory. An engine without online work computes something in
    any case. `sequences` are rows of `layout.SEQUENCE`, and `running` their places in it;
    `offline`: the place in `running` of the first offline request that decodes, and how many do;
    `prefill`: tokens computed of the prompt that would be next, and tokens wanted; the step takes
    `most_s` at most.
    """
    first, resident = offline
    computed, wanted = prefill
    used = online.prefill_tokens + online.decode_seqs
    left, idle = budget - used, used == 0
    count = most = min(resident, max(0, left))
    if most_s < np.inf:
        count = 0
        while count < most:
            middle = (count + most) // 2
            shape = with_decodes(sequences, running, online, first, middle + 1)
            if most_s < shape_s(model, shape):
                most = middle
            else:
                count = middle + 1
        if idle:
            count = max(count, min(1, resident))
    shape = with_decodes(sequences, running, online, first, count)
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
def with_decodes(
    sequences: NDArray[np.void], running: NDArray[np.int32], shape: Sums, first: int, count: int
) -> Sums:
    """`shape` with `count` decodes more: those of `running` from `first` on."""
    pairs = 0
    for i in range(first, first + count):
        pairs += sequences[running[i]].computed + 1
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
