"""What speculative decoding and LoRA add to scheduling: draft tokens, and adapters in a step.

A step verifies the draft tokens of each sequence that decodes, and samples one token more. Of the
drafts the first few are accepted; the rest is taken back. How many are drafted and accepted is the
model's doing and no decision of the scheduler: both are drawn by the ratios of `layout.ENGINE`.
"""

import numpy as np

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import MOST_DRAFTS, Batch, Record, State

NO_PADDING, PADDED_BEHIND_HITS, PADDED = range(3)
"""Whether a step pads a sequence that is admitted with one token to compute: never, where it found
cached blocks, or always."""


@inlined
def padding(state: State, batch: Batch) -> int:
    """How the step, which so far holds running sequences only, pads those that it admits.

    vLLM keeps a step uniform in which all others decode: whoever is admitted to it to decode
    is given placeholders for drafts.
    """
    if state.engine.drafts == 0:
        return NO_PADDING
    for i in range(batch.counts.scheduled):
        if state.sequences[batch.entries[i].slot].is_prefill_chunk:
            return NO_PADDING
    return PADDED if batch.counts.scheduled > 0 else PADDED_BEHIND_HITS


@inlined
def padded_tokens(engine: Record, cached: int, pads: int) -> int:
    """The tokens of an admitted sequence that has one to compute, behind `cached` ones."""
    if pads == PADDED_BEHIND_HITS and cached == 0:
        return 1
    tokens = 1 + engine.drafts
    return tokens if cached + tokens + 1 <= engine.max_model_len else 1


@compiled
def _uniform(seq: Record) -> float:
    """A number in [0, 1) that depends on the sequence and how far it is (splitmix64's finalizer).

    The same for every sequence of that arrival, prompt and output.
    """
    z = np.uint64(seq.output) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seq.prompt)
    z += np.uint64(np.int64(seq.arrival_s * 1e3)) * np.uint64(0xD1B54A32D192ED03)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return float(z >> np.uint64(11)) / 9007199254740992.0


@compiled
def drafted_tokens(engine: Record, seq: Record) -> int:
    """The tokens that are drafted for `seq` where they are known before the step."""
    count, level = 0, _uniform(seq)
    while count < engine.drafts and level < engine.drafted_ratio[count]:
        count += 1
    return count


@compiled
def accepted_tokens(engine: Record, seq: Record, drafts: int) -> int:
    """The tokens of the next `drafts` of `seq` that are accepted."""
    count, level = 0, _uniform(seq)
    while count < min(drafts, MOST_DRAFTS) and level < engine.accepted_ratio[count]:
        count += 1
    return count


@compiled
def count_adapters(state: State, batch: Batch) -> None:
    """List the adapters of the sequences that the step holds so far."""
    batch.counts.adapters = 0
    if state.engine.max_loras > 0:
        for i in range(batch.counts.scheduled):
            note_adapter(state, batch, batch.entries[i].slot)


@inlined
def note_adapter(state: State, batch: Batch, slot: int) -> None:
    """The step holds `slot`, and so its adapter."""
    adapter, count = state.sequences[slot].adapter, batch.counts.adapters
    if adapter == 0 or state.engine.max_loras == 0:
        return
    for i in range(count):
        if batch.entries[i].adapter == adapter:
            return
    batch.entries[count].adapter = adapter
    batch.counts.adapters = count + 1


@inlined
def is_left_out(state: State, batch: Batch, slot: int) -> bool:
    """Whether the step has no room for the adapter of `slot`."""
    adapter = state.sequences[slot].adapter
    left_out = adapter != 0 and 0 < state.engine.max_loras == batch.counts.adapters
    if left_out:
        for i in range(batch.counts.adapters):
            left_out = left_out and batch.entries[i].adapter != adapter
    return bool(left_out)
