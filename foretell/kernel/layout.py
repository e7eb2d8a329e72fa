"""The state of one engine as arrays.

A sequence is a row, and its number, the *slot*, stands for it everywhere. Rows keep their slot
until they are dropped; the order of running and waiting sequences is kept beside them.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import LAYOUTS

Record: TypeAlias = Any
"""One row of a structured array, passed by reference; numpy's type does not tell its fields."""

# The status of a sequence.
UNUSED, EXPECTED, WAITING, RUNNING, ENDED = 0, 1, 2, 3, 4

MOST_DRAFTS = 16
"""The most draft tokens that a sequence can have in one step."""

NONE = -1
"""Stands for no slot, no block and no content."""

SEQUENCE = np.dtype(
    [
        ("arrival_s", np.float64),
        ("first_token_s", np.float64),  # infinite where there is none yet
        ("finished_s", np.float64),
        ("ttft_target_s", np.float64),  # 0: none
        ("tpot_target_s", np.float64),
        ("status", np.int32),
        ("priority", np.int32),
        ("prompt", np.int32),
        ("output", np.int32),  # generated tokens that are known
        ("stop_after", np.int32),  # output tokens after which it ends, whatever the cause
        ("max_tokens", np.int32),  # the limit that the scheduler knows; 0: none
        ("computed", np.int32),  # KV entries, those of scheduled steps included
        ("blocks", np.int32),  # of each KV cache group
        ("left", np.int32),  # the first of them that local attention has left behind
        ("hits", np.int32),  # cached blocks that admission finds, where blocks have no identity
        ("cached", np.int32),  # tokens found cached at the latest admission
        ("preemptions", np.int32),
        ("placeholders", np.int32),  # tokens scheduled to be sampled and not yet known
        ("in_flight", np.int32),  # tokens in scheduled steps whose output is not applied
        ("stale", np.int32),  # those of `in_flight` scheduled before a preemption
        ("is_prefill_chunk", np.int32),  # its latest step leaves some of what is known to compute
        ("next", np.int32),  # the neighbours in the waiting queue
        ("previous", np.int32),
        ("place", np.int32),  # where its blocks begin in `State.places`
        ("committed", np.int32),  # leading blocks of its table whose content is known
        ("drafts", np.int32),  # draft tokens that its next step verifies
        ("adapter", np.int32),  # its LoRA adapter; 0: none
        ("blocked", np.int32),  # 1 while its grammar is compiled; 2 since it was passed over
        ("noted", np.int32),  # output tokens for which a rollout has passed the marks
        ("inputs", np.int32),  # multimodal inputs of its prompt
        ("first_input", np.int32),  # the row of the first of them in `State.inputs`
        ("encoding", np.int32),  # 1 while it runs and has some to compute, or holds some
        ("encoded", np.int32),  # embeddings that the step in the making encodes for it
        # Used where decodes are stepped in bulk (`steady.h`): numbers of its iterations.
        ("entered", np.int32),
        ("last", np.int32),  # the last iteration that schedules it
        ("end", np.int32),  # the iteration in which it ends
    ],
    align=True,
)

ENGINE: np.dtype[np.void] = np.dtype(
    [
        # Configuration.
        ("block_size", np.int64),
        ("max_num_scheduled_tokens", np.int64),
        ("max_num_seqs", np.int64),  # or `max_num_active_seqs`, where that is set
        ("max_model_len", np.int64),
        ("max_num_batched_tokens", np.int64),
        ("long_prefill_token_threshold", np.int64),
        ("long_prefill_token_threshold_adaptive", np.int64),
        ("long_prefill_threshold_when_alone", np.int64),
        ("by_priority", np.int64),
        ("enable_chunked_prefill", np.int64),
        ("watermark_blocks", np.int64),
        ("groups", np.int64),  # KV cache groups: each block of a sequence is one of each group
        ("local_groups", np.int64),  # the last of them, whose layers attend to few tokens
        ("window", np.int64),  # to so many, the next one included
        ("chunk", np.int64),  # or, if not 0, to those of the same chunk of so many
        ("most_local_blocks", np.int64),  # that admission reserves in each of these groups
        ("reserve_full_isl", np.int64),
        ("knows_content", np.int64),
        ("depth", np.int64),  # steps in flight: 2 with async scheduling
        ("drafts", np.int64),  # most draft tokens of a sequence in one step; 0: none are drafted
        ("lookahead", np.int64),  # tokens behind a step's own that it has blocks for
        ("drops_hit", np.int64),  # the last block of a cached prefix is computed again
        ("max_loras", np.int64),  # adapters in one step; 0: there are none
        ("max_num_encoder_input_tokens", np.int64),  # embeddings that one step may encode
        ("encoder_cache_size", np.int64),  # embeddings
        ("disable_chunked_mm_input", np.int64),  # no step computes only some of an input's tokens
        ("num_prefill_lookahead", np.int64),  # tokens behind a step's own that drafting reads
        ("hash_lookahead", np.int64),  # tokens behind a block that its content depends on
        ("prefill_schedule_interval", np.int64),  # in one of so many steps; 0: in each
        ("rules", np.int64),  # the bits of `foretell.model.SchedulerRule`
        # The shares of steps that draft and that accept at least 1, 2, ... tokens.
        ("drafted_ratio", np.float64, (MOST_DRAFTS,)),
        ("accepted_ratio", np.float64, (MOST_DRAFTS,)),
        ("co_schedules", np.int64),  # offline requests get what online ones leave
        # The least TTFT target of the online requests that are expected at any moment; 0: of such
        # as have none, infinite: nobody is expected.
        ("online_ttft_s", np.float64),
        ("usual_online_blocks", np.float64),  # kept free for bursts of online requests
        # Counters.
        ("step_counter", np.int64),  # of vLLM's engine core, by which prompts are put off
        ("prefill_capacity_bound", np.int64),  # 1 while they are not
        ("running", np.int64),
        ("waiting", np.int64),
        ("head", np.int64),  # the ends of the waiting queue
        ("tail", np.int64),
        ("free", np.int64),  # free KV blocks
        ("held", np.int64),
        ("owned", np.int64),  # free and held blocks together, which never changes
        ("unhashed", np.int64),  # free blocks without content
        ("blank_head", np.int64),  # the top of the stack of those
        ("lru_head", np.int64),  # free blocks with content, least recently used first
        ("lru_tail", np.int64),
        ("encoding", np.int64),  # running sequences whose `encoding` is 1
        ("encoder_budget", np.int64),  # embeddings that the step in the making may still encode
        ("encoder_free", np.int64),  # embeddings for which the encoder cache has room
        ("encoder_freeable", np.int64),  # and with what nobody holds dropped
        ("encoder_head", np.int64),  # cached contents that nobody holds, the oldest first
        ("encoder_tail", np.int64),
    ]
)

BLOCK = np.dtype(
    [
        ("refs", np.int32),
        ("content", np.int32),  # NONE where nobody else can hit it
        ("next", np.int32),  # the neighbours in the queue of free blocks
        ("previous", np.int32),
        ("next_same", np.int32),  # among blocks of equal content, the oldest first
        ("previous_same", np.int32),
    ]
)

BATCH: np.dtype[np.void] = np.dtype(
    [
        ("scheduled", np.int64),
        ("admitted", np.int64),
        ("preempted", np.int64),
        ("prefill_seqs", np.int64),
        ("prefill_tokens", np.int64),
        ("prefill_pairs", np.int64),
        ("decode_seqs", np.int64),
        ("decode_pairs", np.int64),
        ("draft_tokens", np.int64),
        ("adapters", np.int64),
        ("sampled", np.int64),  # this and the next are set when the batch is completed
        ("finished", np.int64),
    ]
)


ENTRY = np.dtype(
    [
        # Parallel lists, as long as the batch's counts say; all but two hold slots.
        ("slot", np.int32),
        ("tokens", np.int32),  # tokens that `slot` computes
        ("samples", np.int32),  # 1 where the step samples a token for it
        ("drafts", np.int32),  # those of `tokens` that are drafts
        ("adapter", np.int32),  # each of those in the step once
        ("admitted", np.int32),
        ("preempted", np.int32),
        ("sampled", np.int32),  # sequences that got a token when the step was completed
        ("finished", np.int32),
    ]
)

PLACE = np.dtype([("content", np.int32), ("block", np.int32)])
"""One block of a sequence: its content (NONE where unknown) and the KV block that holds it.

With several KV cache groups, those of one index lie side by side, in the order of the groups.
"""


INPUT = np.dtype(
    [
        ("content", np.int32),  # the row of its content
        ("offset", np.int32),  # its first token in the prompt
        ("length", np.int32),  # tokens
        ("first_embed", np.int32),  # tokens of it before the first that is an embedding
        ("end_embed", np.int32),  # and those up to the last one
        ("held", np.int32),  # 1 while its sequence needs the cached embeddings
        ("step", np.int32),  # what the step in the making does with it
        # Of contents only.
        ("embeds", np.int32),  # embeddings
        ("cached", np.int32),  # 1 where they are in the encoder cache
        ("refs", np.int32),  # sequences that hold them
        ("next", np.int32),  # the neighbours among those that nobody holds
        ("previous", np.int32),
    ]
)
"""A multimodal input of a sequence, or what inputs of equal content share."""


CLOCK: np.dtype[np.void] = np.dtype(
    [
        ("now_s", np.float64),
        ("first_end_s", np.float64),  # when the older of the steps in flight ends
        ("last_end_s", np.float64),  # when the younger one ends
        ("in_flight", np.int64),  # steps in flight
        ("oldest", np.int64),  # which of the two batches the older one is
        ("next_arrival", np.int64),
        ("preemptions", np.int64),
        ("iterations", np.int64),  # steps completed
        ("launched", np.int64),  # steps begun since the start, those without own work included
        ("until_first_token", np.int64),  # a rollout ends with the first token of any watched one
    ]
)

SUMS: np.dtype[np.void] = np.dtype(
    [
        ("active", np.int64),
        ("iteration", np.int64),  # since `enter`
        ("next_event", np.int64),  # the next iteration after which a steady request changes
        ("members", np.int64),  # steady requests, the first of the running list
        ("scheduled", np.int64),  # those that the next iteration schedules
        ("pairs", np.int64),  # their query-key pairs in it
        ("sliding", np.int64),  # those of them whose windows leave blocks behind
        ("given_up", np.int64),  # KV blocks of chunks that the next iteration leaves behind
    ]
)
"""Sums over the requests that decode in bulk (`steady.h`)."""

MARK = np.dtype([("tokens", np.int64), ("at_s", np.float64)])
"""A count of output tokens, and when the last of the watched slots that get so far has so many."""


class State(NamedTuple):
    """The scheduler of one engine. It has few arrays, because every call passes them all."""

    engine: Record
    """A record of `ENGINE`."""
    sequences: NDArray[np.void]
    running: NDArray[np.int32]
    """Slots of the running sequences, in the order of their admission."""
    blocks: NDArray[np.void]
    places: NDArray[np.void]
    """Each sequence's blocks, from its place on."""
    first_with: NDArray[np.int32]
    """The oldest block of each content; equal tokens in another group are another content."""
    inputs: NDArray[np.void]
    """Rows of `INPUT`: each sequence's, from its first one on, in order; contents among them."""


def new_record(dtype: np.dtype[np.void]) -> Record:
    """A record of zeros that can be written to."""
    return np.zeros(1, dtype)[0]


def check_rows(**kinds: np.dtype[np.void]) -> None:
    """ImportError unless compiled code lays out the rows of these kinds in the same way."""
    for name, kind in kinds.items():
        size, compiled = LAYOUTS[name]
        fields = [
            (field, kind.fields[field][1], kind.fields[field][0].itemsize, kind[field].base.kind)
            for field in kind.names or ()
            if kind.fields is not None
        ]
        if (size, compiled) != (kind.itemsize, fields):
            raise ImportError(
                f"compiled code has other rows of {name} than this version: `make setup` builds it"
            )


check_rows(
    Sequence=SEQUENCE,
    Engine=ENGINE,
    Block=BLOCK,
    Counts=BATCH,
    Entry=ENTRY,
    Place=PLACE,
    Input=INPUT,
    Clock=CLOCK,
    SteadySums=SUMS,
    Mark=MARK,
)
