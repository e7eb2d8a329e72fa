"""What multimodal inputs add to scheduling: the encoder budget of a step, and the encoder cache.

Mirrors `Scheduler._try_schedule_encoder_inputs` (vllm/v1/core/sched/scheduler.py, 0.32) and
`EncoderCacheManager` (vllm/v1/core/encoder_cache_manager.py). An input, such as an image, takes the
place of some tokens of a prompt. It is encoded as a whole in the first step that computes any of
them, and its embeddings stay in the cache while its sequence needs them; behind that until others
need the room. Inputs of equal content share them.
"""

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import NONE, Record, State

_ENCODES, _REPEATS = 1, 2
"""What the step in the making does with an input: encodes it, or uses what an equal one of the same
sequence has it encode."""


@compiled
def try_inputs(state: State, slot: int, computed: int, tokens: int) -> int:
    """The tokens behind `computed` ones that `slot` can compute for its inputs, `tokens` at most.

    It stops before an input that finds no room. Cached inputs are then held, and room for others
    has been made, whether or not they are encoded; `encode_inputs` does that. Of what lies between
    the first and the last embedding of an input, every token counts as one.
    """
    engine, seq, rows = state.engine, state.sequences[slot], state.inputs
    first, end = seq.first_input, seq.first_input + seq.inputs
    ahead = computed + engine.num_prefill_lookahead
    window_end, embeds = ahead + tokens, 0
    for i in range(first, end):
        rows[i].step = 0
    for i in range(first, end):
        row = rows[i]
        if row.offset + row.length <= computed:
            continue
        if row.offset >= window_end:
            break
        is_cut = computed < row.offset and computed + tokens < row.offset + row.length
        if engine.disable_chunked_mm_input and is_cut:
            tokens = max(0, row.offset - ahead)
            break
        if _is_encoded(state, first, i):
            row.step = _REPEATS
        elif rows[row.content].cached:
            _hold(state, seq, i)
        elif not _make_room(state, rows[row.content].embeds, embeds):
            tokens = max(0, row.offset - ahead)
            break
        elif computed - row.offset < row.end_embed and window_end - row.offset > row.first_embed:
            embeds += rows[row.content].embeds
            row.step = _ENCODES
    seq.encoded = embeds
    return tokens


@compiled
def encode_inputs(state: State, slot: int, budget: int) -> None:
    """The step computes what `try_inputs` let it, when it had `budget` left to encode with."""
    engine, seq, rows = state.engine, state.sequences[slot], state.inputs
    if seq.encoded > 0:
        # As in vLLM, what preemptions since then have given back is lost.
        engine.encoder_budget = budget - seq.encoded
    for i in range(seq.first_input, seq.first_input + seq.inputs):
        if rows[i].step == _ENCODES:
            content = rows[rows[i].content]
            content.cached, content.refs, rows[i].held = 1, 1, 1
            engine.encoder_free -= content.embeds
            engine.encoder_freeable -= content.embeds
        elif rows[i].step == _REPEATS:
            _hold(state, seq, i)


@inlined
def begin_inputs(state: State, slot: int) -> None:
    """A sequence with inputs begins to run."""
    state.sequences[slot].encoding = 1
    state.engine.encoding += 1


@compiled
def free_processed(state: State, slot: int, drafts: int) -> None:
    """Let go of inputs behind which the output of `slot` is known; its step verified `drafts`.

    Without async scheduling vLLM has no placeholders. Drafts, accepted or not, lie behind inputs.
    """
    engine, seq, rows = state.engine, state.sequences[slot], state.inputs
    tokens = seq.computed - (seq.placeholders if engine.depth > 1 else drafts)
    goes_on = False
    for i in range(seq.first_input, seq.first_input + seq.inputs):
        row = rows[i]
        if row.held and row.offset + row.length + engine.num_prefill_lookahead <= tokens:
            _let_go(state, seq, i)
        goes_on = goes_on or row.held or row.offset + row.length > seq.computed
    if not goes_on:
        _end_inputs(state, seq)


@inlined
def free_inputs(state: State, slot: int) -> None:
    """Let go of all inputs of `slot`, which does not run, or will not go on.

    In their order, as `EncoderCacheManager.free` does for up to eight of them. Of more it goes
    through a set of Python's.
    """
    seq = state.sequences[slot]
    if seq.inputs > 0:
        for i in range(seq.first_input, seq.first_input + seq.inputs):
            if state.inputs[i].held:
                _let_go(state, seq, i)
        _end_inputs(state, seq)


@inlined
def _end_inputs(state: State, seq: Record) -> None:
    state.engine.encoding -= seq.encoding
    seq.encoding = seq.encoded = 0


@inlined
def _is_encoded(state: State, first: int, i: int) -> bool:
    """Whether the step encodes an input of the same sequence with the content of input `i`."""
    for j in range(first, i):
        if state.inputs[j].step == _ENCODES and state.inputs[j].content == state.inputs[i].content:
            return True
    return False


@compiled
def _make_room(state: State, embeds: int, before: int) -> bool:
    """Whether an input can be encoded behind others with `before` embeddings.

    If so, cached contents that nobody holds are dropped until there is room, the oldest first.
    """
    engine, rows, wanted = state.engine, state.inputs, before + embeds
    if embeds > engine.encoder_budget - before or wanted > engine.encoder_freeable:
        return False
    while wanted > engine.encoder_free:
        index = engine.encoder_head
        unlink_content(state, index)
        rows[index].cached = 0
        engine.encoder_free += rows[index].embeds
    return True


@compiled
def _hold(state: State, seq: Record, i: int) -> None:
    """The sequence needs the cached embeddings of its input `i`."""
    engine, index = state.engine, state.inputs[i].content
    content = state.inputs[index]
    if content.refs == 0:
        unlink_content(state, index)
        engine.encoder_freeable -= content.embeds
    end = seq.first_input + seq.inputs
    content.refs += not _holds(state, seq.first_input, end, index)
    state.inputs[i].held = 1


@compiled
def _let_go(state: State, seq: Record, i: int) -> None:
    engine, index = state.engine, state.inputs[i].content
    content = state.inputs[index]
    state.inputs[i].held = 0
    if _holds(state, seq.first_input, seq.first_input + seq.inputs, index):
        return
    content.refs -= 1
    if content.refs == 0:
        push_content(state, index)
        engine.encoder_freeable += content.embeds


@inlined
def _holds(state: State, first: int, end: int, content: int) -> bool:
    """Whether any input of this content is held, from row `first` up to `end`."""
    for i in range(first, end):
        if state.inputs[i].held and state.inputs[i].content == content:
            return True
    return False


@compiled
def push_content(state: State, index: int) -> None:
    """A cached content that nobody holds comes last of those that may be dropped."""
    engine, content = state.engine, state.inputs[index]
    content.previous, content.next = engine.encoder_tail, NONE
    if engine.encoder_tail == NONE:
        engine.encoder_head = index
    else:
        state.inputs[engine.encoder_tail].next = index
    engine.encoder_tail = index


@compiled
def unlink_content(state: State, index: int) -> None:
    """A content is no longer one of those that may be dropped."""
    engine, rows = state.engine, state.inputs
    before, behind = rows[index].previous, rows[index].next
    if before == NONE:
        engine.encoder_head = behind
    else:
        rows[before].next = behind
    if behind == NONE:
        engine.encoder_tail = before
    else:
        rows[behind].previous = before


@compiled
def restore_inputs(state: State, contents: int) -> None:
    """Count who holds what, from the rows of a picture, the first `contents` of which are contents.

    Those of them that are cached and held by nobody are listed in the order in which they would be
    dropped.
    """
    engine, rows = state.engine, state.inputs
    engine.encoder_head = engine.encoder_tail = NONE
    engine.encoder_free = engine.encoder_cache_size
    engine.encoding, next_input = 0, contents
    for i in range(contents):
        rows[i].refs = 0
        if rows[i].cached:
            engine.encoder_free -= rows[i].embeds
    engine.encoder_freeable = engine.encoder_free
    for slot in range(engine.running + engine.waiting):
        seq = state.sequences[slot]
        seq.first_input = next_input
        next_input += seq.inputs
        for i in range(seq.first_input, next_input):
            row = rows[i]
            if row.held:
                rows[row.content].refs += not _holds(state, seq.first_input, i, row.content)
            if slot < engine.running and (row.held or row.offset + row.length > seq.computed):
                seq.encoding = 1
        engine.encoding += seq.encoding
    for i in range(contents):
        if rows[i].cached and rows[i].refs == 0:
            push_content(state, i)
            engine.encoder_freeable += rows[i].embeds


@compiled
def check_inputs(state: State) -> None:
    """The room in the encoder cache, counted anew; a violation is a bug in the twin."""
    engine, held, unused = state.engine, 0, 0
    for i in range(len(state.inputs)):
        content = state.inputs[i]
        if content.cached and content.refs > 0:
            held += content.embeds
        elif content.cached:
            unused += content.embeds
    assert engine.encoder_free >= 0, "more embeddings are cached than fit"
    assert engine.encoder_free + held + unused == engine.encoder_cache_size, "room is miscounted"
    assert engine.encoder_freeable == engine.encoder_free + unused, (
        "what nobody holds is miscounted"
    )
