"""An engine's scheduler at one instant, as published by the backend."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntFlag
from functools import lru_cache
from hashlib import blake2b
from math import inf
from typing import Any, NamedTuple, overload

from foretell.model.batch import Step

MOST_DRAFT_TOKENS = 16
"""The most draft tokens of a request in one step; of engines with more the twin knows nothing."""


class SchedulerRule(IntFlag):
    """In what the versions of vLLM's scheduler differ that the twin knows; 0 is what 0.32 does."""

    OWN_PREEMPTION_GOES_ON = 1
    """Who runs and preempts itself by its priority does not end the turn of those behind it."""
    ADAPTERS_OF_ALL_RUNNING = 2
    """Those who run and are left out of a step count for `max_loras`, too."""
    UNENCODABLE_IS_PASSED_OVER = 4
    """Who waits, and whose multimodal inputs find no room, lets those behind it go first."""
    WHOLE_INPUT_FROM_ITS_START = 8
    """`disable_chunked_mm_input` holds for a step that begins with an input, too."""
    STOPS_AT_INPUT = 16
    """A step reaches up to an input that finds no room, also where drafting reads ahead."""
    FREES_INPUTS_WHEN_COMPUTED = 32
    """Inputs are let go of when they are computed, also where drafting reads ahead."""
    COMMITS_CONFIRMED = 64
    """Blocks can be hit as soon as the output of their step is known, also without async
    scheduling where tokens are drafted."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The scheduler's configuration, in vLLM's names; constant for an engine's life."""

    model_name: str
    block_size_tokens: int
    total_blocks: int
    """KV blocks that requests can use: vLLM's `num_gpu_blocks` less the null block."""
    max_num_seqs: int
    max_num_scheduled_tokens: int
    """The token budget of one step."""
    max_model_len: int
    max_num_active_seqs: int = 0
    """Admission limit where it differs from `max_num_seqs`; 0 means it does not."""
    max_num_batched_tokens: int = 0
    """Tokens one step has room for where that is not the budget; 0 means it is."""
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    """The threshold is at least an equal share of `max_num_batched_tokens`."""
    long_prefill_threshold_when_alone: bool = False
    """The threshold binds a request that has the engine to itself too (vLLM before 0.31)."""
    policy: str = "fcfs"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    async_scheduling: bool = False
    watermark_ratio: float = 0.0
    reserve_full_isl: bool = True
    engine_version: str = ""
    emulated: bool = False
    kv_cache_groups: int = 1
    """Groups of layers; a block of tokens takes one KV block of each."""
    local_kv_cache_groups: int = 0
    """Those of them whose layers attend only to a sliding window, or to their own chunk."""
    sliding_window_tokens: int = 0
    """Tokens that local attention sees, the next one included; 0 where it goes by chunks."""
    attention_chunk_tokens: int = 0
    """0 where local attention has a sliding window; otherwise a multiple of the block size."""
    num_speculative_tokens: int = 0
    """Draft tokens that a step may verify for each request; 0 without speculative decoding."""
    num_lookahead_tokens: int = 0
    """Tokens behind a step's own for which the drafting model needs KV blocks."""
    drops_last_hit: bool = False
    """The last cached block of a prompt is computed again (vLLM's `use_eagle_block_drop`)."""
    max_loras: int = 0
    """LoRA adapters in one step; 0: there are none."""
    max_num_encoder_input_tokens: int = 0
    """Embeddings of multimodal inputs that one step may encode; 0: there are no such inputs, or it
    is not known how they are scheduled."""
    encoder_cache_size: int = 0
    """Embeddings that the encoder cache has room for."""
    disable_chunked_mm_input: bool = False
    """A step that cannot compute a multimodal input to its end stops before it."""
    num_prefill_lookahead_tokens: int = 0
    """Tokens behind a step's own that the drafting model reads, embeddings included."""
    num_hash_lookahead_tokens: int = 0
    """Tokens behind a block that decide, too, whether it is found cached."""
    rules: int = 0
    """The bits of `SchedulerRule` that hold."""
    steps_with: str = ""
    """The name of the data-parallel ranks that step together, this one among them; empty: alone."""
    prefill_schedule_interval: int = 0
    """Prompts are computed in one of so many steps, where others decode; 0: in each."""
    co_schedules: bool = False
    """Requests of the last priority are offline: they get what the others leave."""
    told_within_s: float = 0.0
    """While the same requests decode one token each, steps are reported this late at most, several
    in one snapshot; others as `told_soon_s` says. 0: every step is reported at its start."""
    approximations: tuple[str, ...] = ()
    """What the engine does that the twin does not model; predictions are less exact for it."""

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold `tokens` tokens, in all groups."""
        blocks = -(-tokens // self.block_size_tokens)
        if not self.attends_locally:
            return self.kv_cache_groups * blocks
        local = self.local_kv_cache_groups
        return (self.kv_cache_groups - local) * blocks + local * min(blocks, self.most_local_blocks)

    @property
    def told_soon_s(self) -> float:
        """How late a step at which requests come or go, or compute a prompt, is reported."""
        return self.told_within_s / 5

    @property
    def attends_locally(self) -> bool:
        """Whether some layers give up blocks before a request ends."""
        sees = self.attention_chunk_tokens or self.sliding_window_tokens
        return self.local_kv_cache_groups > 0 and sees < self.max_model_len

    @property
    def most_local_blocks(self) -> int:
        """The blocks that one request may hold of a group with local attention.

        `max_admission_blocks_per_request` of vLLM's `SlidingWindowSpec` and
        `ChunkedLocalAttentionSpec` (vllm/v1/kv_cache_interface.py, 0.32).
        """
        batched = self.max_num_batched_tokens or self.max_num_scheduled_tokens
        in_flight = batched * (2 if self.async_scheduling else 1)
        sees = self.attention_chunk_tokens or self.sliding_window_tokens - 1
        blocks = -(-min(sees + in_flight, self.max_model_len) // self.block_size_tokens)
        # A window may begin in the middle of a block.
        return blocks if self.attention_chunk_tokens else blocks + 1


class EncoderInput(NamedTuple):
    """A multimodal input, such as an image, which takes the place of some tokens of a prompt."""

    content: int
    """Equal numbers: one entry of the encoder cache serves."""
    offset: int
    """The first of its tokens in the prompt."""
    length: int
    """Its tokens."""
    embeds: int
    """Those of them that are embeddings; the others are ordinary tokens."""
    first_embed: int
    """The first of these, counted from `offset`."""
    end_embed: int
    """Behind the last of these."""
    held: int = 0
    """1 while its request needs its entry of the encoder cache."""


@lru_cache(maxsize=4096)
def content_number(identifier: str) -> int:
    """The number below 2**64 for `EncoderInput.content`, of vLLM's identifier of an input."""
    return int.from_bytes(blake2b(identifier.encode(), digest_size=8).digest(), "big")


class CachedInput(NamedTuple):
    """An entry of the encoder cache."""

    content: int
    """The number that `EncoderInput` has of it."""
    embeds: int


@dataclass(frozen=True, slots=True)
class RequestState:
    """One request inside an engine. All counts are tokens unless named otherwise."""

    request_id: str
    foretell_id: str
    """The cluster-wide id given by a Foretell scheduler; empty for other traffic."""
    prompt_tokens: int
    output_tokens: int
    """Generated and known to the scheduler; more may be in flight."""
    computed_tokens: int
    """KV entries, those of the step in flight included."""
    max_tokens: int
    arrival_unix_s: float
    cached_tokens: int = 0
    priority: int = 0
    predicted_output_tokens: float = 0.0
    """0 when nobody predicted it."""
    scheduled_tokens: int = 0
    in_flight_tokens: int = 0
    preemptions: int = 0
    left_blocks: int = 0
    """Its first blocks, which groups with local attention have left behind."""
    ttft_target_s: float = 0.0
    """This and the next: what the engine was told; 0: nothing."""
    tpot_target_s: float = 0.0
    held_blocks: int = 0
    """KV blocks of each group; 0: those that its computed tokens need."""
    adapter: int = 0
    """The number of its LoRA adapter in this engine; 0: none."""
    awaits_grammar: int = 0
    """1 while the grammar of its structured output is compiled: until then it is not admitted."""
    older_tokens: int = 0
    """Those that the step in flight before the newest computes; 0: none, or nobody told."""
    encoder_inputs: tuple[EncoderInput, ...] = ()
    """The multimodal inputs of its prompt, in their order."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestTable(Sequence[RequestState]):
    """Requests as columns, which is how they travel: a row is made when somebody looks at it.

    The columns are as long as each other, and named and ordered as the fields of `RequestState`.
    """

    request_id: Sequence[str]
    foretell_id: Sequence[str]
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    computed_tokens: Sequence[int]
    max_tokens: Sequence[int]
    arrival_unix_s: Sequence[float]
    cached_tokens: Sequence[int]
    priority: Sequence[int]
    predicted_output_tokens: Sequence[float]
    scheduled_tokens: Sequence[int]
    in_flight_tokens: Sequence[int]
    preemptions: Sequence[int]
    left_blocks: Sequence[int]
    ttft_target_s: Sequence[float]
    tpot_target_s: Sequence[float]
    held_blocks: Sequence[int]
    adapter: Sequence[int]
    awaits_grammar: Sequence[int]
    older_tokens: Sequence[int]
    encoder_inputs: Sequence[tuple[EncoderInput, ...]]

    @classmethod
    def of(cls, rows: Sequence[RequestState]) -> "RequestTable":
        """`rows` as columns; a table is returned as it is."""
        if isinstance(rows, RequestTable):
            return rows
        return cls(*([getattr(row, name) for row in rows] for name in COLUMNS))

    def columns(self) -> Iterable[Sequence[Any]]:
        """All of them, in order."""
        return (getattr(self, name) for name in COLUMNS)

    def __len__(self) -> int:
        return len(self.request_id)

    def __iter__(self) -> Iterator[RequestState]:
        return map(RequestState, *self.columns())

    @overload
    def __getitem__(self, index: int) -> RequestState: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RequestState]: ...
    def __getitem__(self, index: int | slice) -> RequestState | Sequence[RequestState]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return RequestState(*(column[index] for column in self.columns()))

    def __eq__(self, other: object) -> bool:
        """Whether `other` is a sequence of the same requests."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


COLUMNS = tuple(field.name for field in fields(RequestState))
assert tuple(field.name for field in fields(RequestTable)) == COLUMNS


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The scheduler's state right after a `schedule()` call, or on going idle."""

    instance_id: str
    engine_run_id: str
    sequence: int
    taken_unix_s: float
    published_unix_s: float
    config: EngineConfig
    free_blocks: int
    running: Sequence[RequestState]
    """Here and below: a `RequestTable` where it came over a wire."""
    waiting: Sequence[RequestState]
    """In the order in which they will be admitted."""
    steps_in_flight: tuple[Step, ...]
    completed_steps: tuple[Step, ...]
    online_ttft_s: float = inf
    """The least TTFT target of the online requests that an engine which co-schedules expects at any
    moment; 0: of such as have none, infinite: it expects nobody."""
    usual_online_blocks: float = 0.0
    """KV blocks that it keeps for online requests, those that they hold included."""
    drafted_ratio: tuple[float, ...] = ()
    """The shares of the latest steps of requests that decode which verified at least 1, 2, ...
    draft tokens; empty: nobody counted."""
    accepted_ratio: tuple[float, ...] = ()
    """Those which accepted so many."""
    step_counter: int = 0
    """The number of the next step among those between which prompts are put off."""
    prefill_capacity_bound: bool = False
    """As vLLM's scheduler has it: prompts are not put off though others decode."""
    encoder_cache: tuple[CachedInput, ...] = ()
    """First those that no request needs, in the order in which they would be dropped."""
