"""From a published snapshot back to a twin that continues where the engine stands."""

from collections.abc import Callable

from foretell.engine.batch import Batch
from foretell.engine.kv import BlockCount
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Twin
from foretell.model import EngineConfig, EngineSnapshot, RequestState

ExpectedOutput = Callable[[RequestState], float]
"""Total output tokens a request is expected to generate, given how far it has come."""


def restore(snapshot: EngineSnapshot, expected_output: ExpectedOutput) -> tuple[Twin, Batch]:
    """A twin in the snapshot's state, and the step in flight for `Twin.complete`.

    With async scheduling two steps may be in flight; the older one's tokens are counted as
    output already, so that completing the returned batch completes both.
    """
    config = snapshot.config
    running = [_sequence(state, config, expected_output) for state in snapshot.running]
    waiting = [_sequence(state, config, expected_output) for state in snapshot.waiting]
    for seq in waiting:
        seq.computed_tokens = 0  # admission computes everything again
    for seq in running:
        seq.blocks = config.blocks_for(seq.computed_tokens)
    batch = Batch(
        [
            (seq, state.scheduled_tokens)
            for seq, state in zip(running, snapshot.running, strict=True)
            if state.scheduled_tokens or state.in_flight_tokens
        ]
    )
    blocks = BlockCount(
        config.block_size_tokens, snapshot.free_blocks, sum(seq.blocks for seq in running)
    )
    return Twin(config, running, waiting, blocks), batch


def _sequence(
    state: RequestState, config: EngineConfig, expected_output: ExpectedOutput
) -> Sequence:
    output_tokens = state.output_tokens + max(0, state.in_flight_tokens - 1)
    seq = Sequence(
        request_id=state.foretell_id or state.request_id,
        prompt_tokens=state.prompt_tokens,
        stop_after=0,
        max_tokens=state.max_tokens,
        arrival_s=state.arrival_unix_s,
        priority=state.priority,
        output_tokens=output_tokens,
        computed_tokens=state.computed_tokens,
        preemptions=state.preemptions,
    )
    seq.stop_after = stop_after(seq, config, expected_output(state))
    return seq


def stop_after(seq: Sequence, config: EngineConfig, expected_tokens: float) -> int:
    """`expected_tokens` as whole output tokens the engine will allow `seq`."""
    most = config.max_model_len - seq.prompt_tokens
    if seq.max_tokens > 0:
        most = min(most, seq.max_tokens)
    # A live sequence has at least one token to come, whatever was expected of it.
    return max(seq.output_tokens + 1, min(most, round(expected_tokens)))
