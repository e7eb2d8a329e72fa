// What multimodal inputs add to scheduling: the encoder budget of a step, and the encoder cache.
//
// Mirrors `Scheduler._try_schedule_encoder_inputs` (vllm/v1/core/sched/scheduler.py, 0.32) and
// `EncoderCacheManager` (vllm/v1/core/encoder_cache_manager.py). An input, such as an image, takes
// the place of some tokens of a prompt. It is encoded as a whole in the first step that computes
// any of them. Its embeddings stay in the cache while its sequence needs them, and after that until
// others need the room. Inputs with equal content share embeddings.

#pragma once

#include "state.h"

namespace foretell::encoder {

// What the step being scheduled does with an input: encode it, or reuse an equal input of the same
// sequence that it encodes.
constexpr Int ENCODES = 1, REPEATS = 2;

// Whether the step encodes an input of the same sequence with the content of input `i`.
INLINED bool is_encoded(const State& state, Int first, Int i) {
    auto& rows = state.inputs;
    for (Int j = first; j < i; j++) {
        if (rows[j].step == ENCODES && rows[j].content == rows[i].content) return true;
    }
    return false;
}

// Whether any input in the rows from `first` up to `end` holds this content.
INLINED bool holds(const State& state, Int first, Int end, Int content) {
    for (Int i = first; i < end; i++) {
        if (state.inputs[i].held && state.inputs[i].content == content) return true;
    }
    return false;
}

// Append a cached content that no sequence holds to the list of evictable contents.
COMPILED void push_content(const State& state, Int index) {
    auto& engine = state.engine;
    auto& content = state.inputs[index];
    content.previous = engine.encoder_tail;
    content.next = NONE;
    if (engine.encoder_tail == NONE) {
        engine.encoder_head = index;
    } else {
        state.inputs[engine.encoder_tail].next = index;
    }
    engine.encoder_tail = index;
}

// Remove a content from the list of evictable contents.
COMPILED void unlink_content(const State& state, Int index) {
    auto& engine = state.engine;
    auto& rows = state.inputs;
    const Int before = rows[index].previous, behind = rows[index].next;
    if (before == NONE) {
        engine.encoder_head = behind;
    } else {
        rows[before].next = behind;
    }
    if (behind == NONE) {
        engine.encoder_tail = before;
    } else {
        rows[behind].previous = before;
    }
}

// Whether an input can be encoded after others with `before` embeddings in total.
//
// If so, cached contents that no sequence holds are evicted until there is room, oldest first.
COMPILED bool make_room(const State& state, Int embeds, Int before) {
    auto& engine = state.engine;
    auto& rows = state.inputs;
    const Int wanted = before + embeds;
    if (embeds > engine.encoder_budget - before || wanted > engine.encoder_freeable) return false;
    while (wanted > engine.encoder_free) {
        const Int index = engine.encoder_head;
        unlink_content(state, index);
        rows[index].cached = 0;
        engine.encoder_free += rows[index].embeds;
    }
    return true;
}

// Hold the cached embeddings of input `i` for the sequence.
COMPILED void hold(const State& state, const Sequence& seq, Int i) {
    auto& engine = state.engine;
    const Int index = state.inputs[i].content;
    auto& content = state.inputs[index];
    if (content.refs == 0) {
        unlink_content(state, index);
        engine.encoder_freeable -= content.embeds;
    }
    const Int end = seq.first_input + seq.inputs;
    content.refs += !holds(state, seq.first_input, end, index);
    state.inputs[i].held = 1;
}

COMPILED void let_go(const State& state, const Sequence& seq, Int i) {
    auto& engine = state.engine;
    const Int index = state.inputs[i].content;
    auto& content = state.inputs[index];
    state.inputs[i].held = 0;
    if (holds(state, seq.first_input, seq.first_input + seq.inputs, index)) return;
    content.refs -= 1;
    if (content.refs == 0) {
        push_content(state, index);
        engine.encoder_freeable += content.embeds;
    }
}

// The tokens behind `computed` ones, at most `tokens`, that `slot` can compute with its inputs.
//
// It stops before an input for which there is no room. Cached inputs are held, and room for others
// is made, whether or not `encode_inputs` encodes them later. Every token between the first and the
// last embedding of an input counts as an embedding.
COMPILED Int try_inputs(const State& state, Int slot, Int computed, Int tokens) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    auto& rows = state.inputs;
    const Int first = seq.first_input, end = seq.first_input + seq.inputs;
    const Int ahead = computed + engine.num_prefill_lookahead;
    const Int window_end = ahead + tokens;
    const bool from_start = follows(engine, WHOLE_INPUT_FROM_ITS_START);
    const Int stop = follows(engine, STOPS_AT_INPUT) ? computed : ahead;
    Int embeds = 0;
    for (Int i = first; i < end; i++) rows[i].step = 0;
    for (Int i = first; i < end; i++) {
        auto& row = rows[i];
        if (row.offset + row.length <= computed) continue;
        if (row.offset >= window_end) break;
        const bool is_cut = computed < row.offset + from_start &&
            computed + tokens < row.offset + row.length;
        if (engine.disable_chunked_mm_input && is_cut) {
            tokens = max(Int(0), row.offset - ahead);
            break;
        }
        if (is_encoded(state, first, i)) {
            row.step = REPEATS;
        } else if (rows[row.content].cached) {
            hold(state, seq, i);
        } else if (!make_room(state, rows[row.content].embeds, embeds)) {
            tokens = max(Int(0), min(tokens, row.offset - stop));
            break;
        } else if (computed - row.offset < row.end_embed &&
                   window_end - row.offset > row.first_embed) {
            embeds += rows[row.content].embeds;
            row.step = ENCODES;
        }
    }
    seq.encoded = embeds;
    return tokens;
}

// Encode what `try_inputs` chose; `budget` was the encoder budget at that time.
COMPILED void encode_inputs(const State& state, Int slot, Int budget) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    auto& rows = state.inputs;
    if (seq.encoded > 0) {
        // As in vLLM, refunds of preemptions since then are lost.
        engine.encoder_budget = budget - seq.encoded;
    }
    for (Int i = seq.first_input; i < seq.first_input + seq.inputs; i++) {
        if (rows[i].step == ENCODES) {
            auto& content = rows[rows[i].content];
            content.cached = content.refs = rows[i].held = 1;
            engine.encoder_free -= content.embeds;
            engine.encoder_freeable -= content.embeds;
        } else if (rows[i].step == REPEATS) {
            hold(state, seq, i);
        }
    }
}

// Note that a sequence with inputs begins to run.
INLINED void begin_inputs(const State& state, Int slot) {
    state.sequences[slot].encoding = 1;
    state.engine.encoding += 1;
}

INLINED void end_inputs(const State& state, Sequence& seq) {
    state.engine.encoding -= seq.encoding;
    seq.encoding = seq.encoded = 0;
}

// Let go of inputs before the confirmed tokens of `slot`, whose step verified `drafts` drafts.
//
// Without async scheduling vLLM has no placeholders. Drafts, accepted or not, are behind inputs.
COMPILED void free_processed(const State& state, Int slot, Int drafts) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    auto& rows = state.inputs;
    const Int tokens = seq.computed - (engine.depth > 1 ? Int(seq.placeholders) : drafts);
    const bool reads_ahead = !follows(engine, FREES_INPUTS_WHEN_COMPUTED);
    const Int ahead = reads_ahead ? engine.num_prefill_lookahead : 0;
    bool goes_on = false;
    for (Int i = seq.first_input; i < seq.first_input + seq.inputs; i++) {
        auto& row = rows[i];
        if (row.held && row.offset + row.length + ahead <= tokens) {
            let_go(state, seq, i);
        }
        goes_on = goes_on || row.held || row.offset + row.length > seq.computed;
    }
    if (!goes_on) end_inputs(state, seq);
}

// Let go of all inputs of `slot`, which does not run or will not go on.
//
// They are freed in order, as by `EncoderCacheManager.free` for up to eight inputs. With more, vLLM
// frees them in the order of a Python set.
INLINED void free_inputs(const State& state, Int slot) {
    auto& seq = state.sequences[slot];
    if (seq.inputs > 0) {
        for (Int i = seq.first_input; i < seq.first_input + seq.inputs; i++) {
            if (state.inputs[i].held) let_go(state, seq, i);
        }
        end_inputs(state, seq);
    }
}

// Restore the counters and lists of the encoder cache from the rows of a snapshot.
//
// The first `contents` rows are contents. Among them, cached ones that no sequence holds are in the
// order in which they would be evicted.
COMPILED void restore_inputs(const State& state, Int contents) {
    auto& engine = state.engine;
    auto& rows = state.inputs;
    engine.encoder_head = engine.encoder_tail = NONE;
    engine.encoder_free = engine.encoder_cache_size;
    engine.encoding = 0;
    Int next_input = contents;
    for (Int i = 0; i < contents; i++) {
        rows[i].refs = 0;
        if (rows[i].cached) engine.encoder_free -= rows[i].embeds;
    }
    engine.encoder_freeable = engine.encoder_free;
    for (Int slot = 0; slot < engine.running + engine.waiting; slot++) {
        auto& seq = state.sequences[slot];
        seq.first_input = next_input;
        next_input += seq.inputs;
        for (Int i = seq.first_input; i < next_input; i++) {
            auto& row = rows[i];
            if (row.held) {
                rows[row.content].refs += !holds(state, seq.first_input, i, row.content);
            }
            const bool goes_on = row.held || row.offset + row.length > seq.computed;
            if (slot < engine.running && goes_on) seq.encoding = 1;
        }
        engine.encoding += seq.encoding;
    }
    for (Int i = 0; i < contents; i++) {
        if (rows[i].cached && rows[i].refs == 0) {
            push_content(state, i);
            engine.encoder_freeable += rows[i].embeds;
        }
    }
}

// Recount the room in the encoder cache; a violation is a bug in the twin.
COMPILED void check_inputs(const State& state) {
    auto& engine = state.engine;
    Int held = 0, unused = 0;
    for (auto& content : state.inputs) {
        if (content.cached && content.refs > 0) {
            held += content.embeds;
        } else if (content.cached) {
            unused += content.embeds;
        }
    }
    auto& broken = state.broken;
    require(broken, engine.encoder_free >= 0, "more embeddings are cached than fit");
    require(broken, engine.encoder_free + held + unused == engine.encoder_cache_size,
            "room is miscounted");
    require(broken, engine.encoder_freeable == engine.encoder_free + unused,
            "the evictable embeddings are miscounted");
}

}  // namespace foretell::encoder
