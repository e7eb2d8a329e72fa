"""The waiting queue, which is a list linked through its sequences, and the running list."""

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import ENDED, NONE, RUNNING, WAITING, State
from foretell.kernel.offline import OFFLINE_PRIORITY


@inlined
def is_offline(state: State, slot: int) -> bool:
    """Whether `slot` is an offline request of an engine that tells them apart."""
    offline = state.sequences[slot].priority == OFFLINE_PRIORITY
    return bool(offline and state.engine.co_schedules)


@compiled
def enqueue(state: State, slot: int) -> None:
    """Add `slot` to the waiting queue: at its end, or in the order of (priority, arrival).

    Where offline requests are told apart, online ones stand before all of them.
    """
    engine, seq = state.engine, state.sequences[slot]
    before = engine.tail
    if engine.co_schedules and seq.priority != OFFLINE_PRIORITY:
        engine.online_ttft_s = min(engine.online_ttft_s, seq.ttft_target_s)
        while before != NONE and is_offline(state, before):
            before = state.sequences[before].previous
    if engine.by_priority and not is_offline(state, slot):
        while before != NONE:
            other = state.sequences[before]
            if other.priority < seq.priority:
                break
            if other.priority == seq.priority and other.arrival_s <= seq.arrival_s:
                break
            before = other.previous
    _link(state, slot, before)


@compiled
def enqueue_preempted(state: State, slot: int) -> None:
    """Add a preempted `slot` at the head of the queue, or in its place where classes count."""
    if state.engine.by_priority or is_offline(state, slot):
        enqueue(state, slot)
    else:
        _link(state, slot, NONE)


@compiled
def _link(state: State, slot: int, before: int) -> None:
    """Insert `slot` behind `before`; NONE: at the head."""
    engine, sequences = state.engine, state.sequences
    behind = engine.head if before == NONE else sequences[before].next
    seq = sequences[slot]
    seq.previous, seq.next, seq.status = before, behind, WAITING
    if before == NONE:
        engine.head = slot
    else:
        sequences[before].next = slot
    if behind == NONE:
        engine.tail = slot
    else:
        sequences[behind].previous = slot
    engine.waiting += 1


@compiled
def unlink(state: State, slot: int) -> None:
    """Remove `slot` from the waiting queue."""
    engine, sequences = state.engine, state.sequences
    before, behind = sequences[slot].previous, sequences[slot].next
    if before == NONE:
        engine.head = behind
    else:
        sequences[before].next = behind
    if behind == NONE:
        engine.tail = before
    else:
        sequences[behind].previous = before
    engine.waiting -= 1


@compiled
def run(state: State, slot: int) -> None:
    """Append `slot` to the running list."""
    engine = state.engine
    state.running[engine.running] = slot
    engine.running += 1
    state.sequences[slot].status = RUNNING


@compiled
def stop_running(state: State, position: int) -> None:
    """Remove the sequence at `position` from the running list."""
    engine, running = state.engine, state.running
    for i in range(position, engine.running - 1):
        running[i] = running[i + 1]
    engine.running -= 1


@compiled
def drop_ended(state: State) -> None:
    """Remove the sequences that have ended from the running list."""
    engine, kept = state.engine, 0
    for i in range(engine.running):
        slot = state.running[i]
        if state.sequences[slot].status != ENDED:
            state.running[kept] = slot
            kept += 1
    engine.running = kept
