"""Runs of identical decode steps, taken at once where nothing else can happen in between."""

from foretell.kernel.blocks import blocks_for
from foretell.kernel.jit import compiled
from foretell.kernel.layout import ENDED, NONE, Batch, State
from foretell.kernel.scheduling import admissible_tokens, long_prefill_threshold


@compiled
def decode_run(state: State, most: int) -> tuple[int, int]:
    """How many of the next iterations are certain to schedule one token for every running sequence.

    At most `most`, and no further than the first finish, which may happen in the last of them. 0
    when the next may admit, prefill, preempt or leave somebody out. With steps in flight, those
    must be of this kind too. Beside it, the query-key pairs of the first of these steps.
    """
    engine = state.engine
    count, longest, ahead = engine.running, engine.max_model_len, engine.depth - 1
    # With prefix caching, what decodes may become a waiting one's hit.
    if count == 0 or count > engine.budget or engine.knows_content:
        return 0, 0
    steps, pairs = most, count
    for i in range(count):
        seq = state.sequences[state.running[i]]
        known = seq.prompt + seq.output
        if seq.output == 0 or seq.placeholders != ahead or seq.computed != known - 1 + ahead:
            return 0, 0
        pairs += seq.computed
        steps = min(steps, seq.stop_after - seq.output, longest - known - ahead)
        if ahead > 0 and seq.max_tokens > 0:
            # Foreseen to end, it is left out of the step behind that of its last token.
            steps = min(steps, seq.max_tokens - seq.output - ahead)
    if steps <= 0 or _may_admit(state):
        return 0, 0
    # Every sequence opens at most this many blocks; only when that is too many, count exactly.
    if count * (steps // engine.block_size + 1) > engine.free:
        steps = _steps_that_fit(state, steps)
    return steps, pairs


@compiled
def advance_decode(state: State, steps: int, batch: Batch, now_s: float) -> None:
    """Do a `decode_run` of `steps`; who ends, ends at `now_s`.

    Afterwards `batch` holds the last step scheduled, as if `schedule` had filled it.
    """
    engine, counts = state.engine, batch.counts
    count, block_size, longest = engine.running, engine.block_size, engine.max_model_len
    taken = kept = 0
    for i in range(count):
        slot = state.running[i]
        seq = state.sequences[slot]
        seq.output += steps
        seq.computed += steps
        seq.in_flight = seq.placeholders  # one token each, whatever the step before computed
        if seq.computed > seq.blocks * block_size:
            blocks = blocks_for(state, seq.computed)
            taken += blocks - seq.blocks
            seq.blocks = blocks
        batch.entries[i].slot, batch.entries[i].tokens, batch.entries[i].samples = slot, 1, 1
        if seq.output >= seq.stop_after or seq.prompt + seq.output >= longest:
            taken -= seq.blocks
            seq.blocks, seq.status, seq.finished_s = 0, ENDED, now_s
        else:
            state.running[kept] = slot
            kept += 1
    engine.running = kept
    engine.free -= taken
    engine.held += taken
    assert engine.free >= 0, "more KV blocks taken than exist"
    counts.scheduled = count
    counts.admitted = counts.preempted = 0


@compiled
def _may_admit(state: State) -> bool:
    """While only decoding, free blocks shrink: a head that does not fit now will not fit later."""
    engine = state.engine
    budget = engine.budget - engine.running
    if engine.head == NONE or budget <= 0 or engine.running >= engine.max_running:
        return False
    head = state.sequences[engine.head]
    hits = min(head.hits, (head.prompt + head.output - 1) // engine.block_size)
    threshold = long_prefill_threshold(state)
    return admissible_tokens(state, engine.head, budget, threshold, hits) > 0


@compiled
def _steps_that_fit(state: State, most: int) -> int:
    """The most steps, up to `most`, for which there are blocks."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if _blocks_of(state, middle) <= state.engine.free:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def _blocks_of(state: State, steps: int) -> int:
    """Blocks that `steps` further decode steps take."""
    engine, blocks = state.engine, 0
    for i in range(engine.running):
        seq = state.sequences[state.running[i]]
        blocks += max(0, blocks_for(state, seq.computed + steps) - seq.blocks)
    return blocks
