"""The state of an engine's scheduler at one moment, as the backend publishes it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntFlag
from functools import lru_cache
from hashlib import blake2b
from math import inf
from typing import Any, NamedTuple, overload

from foretell.model.batch import Step

MOST_DRAFT_TOKENS = 16
"""The most draft tokens of a request in one step; the twin does not model engines with more."""


class SchedulerRule(IntFlag):
    """Differences between versions of vLLM's scheduler that the twin models; 0 is vLLM 0.32."""

    OWN_PREEMPTION_GOES_ON = 1
    """After a running request preempts itself by priority, those behind it are still scheduled."""
    ADAPTERS_OF_ALL_RUNNING = 2
    """Running requests that a step leaves out count towards `max_loras`, too."""
    UNENCODABLE_IS_PASSED_OVER = 4
    """A waiting request whose multimodal inputs find no room does not block those behind it."""
    WHOLE_INPUT_FROM_ITS_START = 8
    """`disable_chunked_mm_input` also holds for a step that begins at the start of an input."""
    STOPS_AT_INPUT = 16
    """A step ends at an input that finds no room, not `num_prefill_lookahead_tokens` before it."""
    FREES_INPUTS_WHEN_COMPUTED = 32
    """Inputs are freed when they are computed, not `num_prefill_lookahead_tokens` later."""
    COMMITS_CONFIRMED = 64
    """Blocks can be hit as soon as the output of their step is known; without async scheduling,
    this applies where tokens are drafted."""


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
    """Tokens that one step has room for; 0: `max_num_scheduled_tokens`."""
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    """The threshold is at least an equal share of `max_num_batched_tokens`."""
    long_prefill_threshold_when_alone: bool = False
    """The threshold also applies to a request that is alone in the engine (vLLM before 0.31)."""
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
    """The groups whose layers attend only to a sliding window, or to the current chunk."""
    sliding_window_tokens: int = 0
    """Window of local attention, the token that is computed included; 0 for chunked attention."""
    attention_chunk_tokens: int = 0
    """Chunk of local attention, a multiple of the block size; 0 for a sliding window."""
    num_speculative_tokens: int = 0
    """Draft tokens that a step may verify for each request; 0 without speculative decoding."""
    num_lookahead_tokens: int = 0
    """Tokens after those of a step for which the draft model needs KV blocks."""
    drops_last_hit: bool = False
    """The last cached block of a prompt is computed again (vLLM's `use_eagle_block_drop`)."""
    max_loras: int = 0
    """LoRA adapters in one step; 0: there are none."""
    max_num_encoder_input_tokens: int = 0
    """Embeddings of multimodal inputs that one step may encode; 0: there are no multimodal inputs,
    or it is not known how they are scheduled."""
    encoder_cache_size: int = 0
    """Embeddings that the encoder cache has room for."""
    disable_chunked_mm_input: bool = False
    """Whether a step that cannot compute a multimodal input to its end stops before it."""
    num_prefill_lookahead_tokens: int = 0
    """Tokens after those of a step that the draft model reads, embeddings included."""
    num_hash_lookahead_tokens: int = 0
    """Tokens after a block that must be equal, too, for the block to be found cached."""
    rules: int = 0
    """The bits of `SchedulerRule` that hold."""
    steps_with: str = ""
    """Name of the group of data-parallel ranks that steps together with this one; empty: none."""
    prefill_schedule_interval: int = 0
    """While requests decode, only every n-th step computes prompts; 0: every step may."""
    co_schedules: bool = False
    """Whether requests of the last priority are offline and get what the others leave."""
    reported_within_s: float = 0.0
    """Longest delay until a step is reported in which the same requests decode one token each; a
    snapshot reports several. Other steps: `reported_soon_s`. 0: each step is reported at its
    start."""
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
    def reported_soon_s(self) -> float:
        """Longest delay until a step is reported in which requests come, go or compute a prompt."""
        return self.reported_within_s / 5

    @property
    def attends_locally(self) -> bool:
        """Whether some layers free blocks before a request ends."""
        sees = self.attention_chunk_tokens or self.sliding_window_tokens
        return self.local_kv_cache_groups > 0 and sees < self.max_model_len

    @property
    def most_local_blocks(self) -> int:
        """The most blocks that one request may hold of a group with local attention.

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
    """Number of its content: inputs with equal numbers share an entry of the encoder cache."""
    offset: int
    """Position of its first token in the prompt."""
    length: int
    """Number of its tokens."""
    embeds: int
    """How many of them are embeddings; the others are ordinary tokens."""
    first_embed: int
    """Position of the first embedding, counted from `offset`."""
    end_embed: int
    """Position after the last embedding, counted from `offset`."""
    held: int = 0
    """1 while its request needs its entry of the encoder cache."""


@lru_cache(maxsize=4096)
def content_number(identifier: str) -> int:
    """`EncoderInput.content` for vLLM's identifier of an input: a hash below 2**64."""
    return int.from_bytes(blake2b(identifier.encode(), digest_size=8).digest(), "big")


class CachedInput(NamedTuple):
    """An entry of the encoder cache."""

    content: int
    """As `EncoderInput.content`."""
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
    """0: not predicted."""
    scheduled_tokens: int = 0
    in_flight_tokens: int = 0
    preemptions: int = 0
    left_blocks: int = 0
    """How many of its first blocks the groups with local attention have freed."""
    ttft_target_s: float = 0.0
    """This and the next: the targets that the engine was told; 0: none."""
    tpot_target_s: float = 0.0
    held_blocks: int = 0
    """KV blocks that it holds in each group; 0: those that its computed tokens need."""
    adapter: int = 0
    """The number of its LoRA adapter in this engine; 0: none."""
    awaits_grammar: int = 0
    """1 while the grammar of its structured output is compiled; it is not admitted before."""
    older_tokens: int = 0
    """Tokens that the step in flight before the newest computes; 0: none, or not known."""
    encoder_inputs: tuple[EncoderInput, ...] = ()
    """The multimodal inputs of its prompt, in their order."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestTable(Sequence[RequestState]):
    """Requests as columns, the form in which they are sent; a row is created on access.

    All columns have the same length, and the names and the order of the fields of `RequestState`.
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
        """All columns, in order."""
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
    """The scheduler's state right after a `schedule()` call, or when it becomes idle."""

    instance_id: str
    engine_run_id: str
    sequence: int
    taken_unix_s: float
    published_unix_s: float
    config: EngineConfig
    free_blocks: int
    running: Sequence[RequestState]
    """This and the next: a `RequestTable` if the snapshot was received from another process."""
    waiting: Sequence[RequestState]
    """In the order in which they will be admitted."""
    steps_in_flight: tuple[Step, ...]
    completed_steps: tuple[Step, ...]
    online_ttft_s: float = inf
    """In an engine that co-schedules: the least TTFT target of the online requests that it expects
    at any moment; 0: they have no target; infinite: it expects none."""
    usual_online_blocks: float = 0.0
    """KV blocks that it keeps for online requests, those that they hold included."""
    drafted_ratio: tuple[float, ...] = ()
    """Of the latest steps in which requests decoded, the shares that verified at least 1, 2, ...
    draft tokens of a request; empty: not counted."""
    accepted_ratio: tuple[float, ...] = ()
    """The shares that accepted at least 1, 2, ... draft tokens of a request."""
    step_counter: int = 0
    """vLLM's number of the next step, for `prefill_schedule_interval`."""
    prefill_capacity_bound: bool = False
    """vLLM's flag of this name: prompts are not deferred, though others decode."""
    encoder_cache: tuple[CachedInput, ...] = ()
    """First the entries that no request needs, in the order in which they would be evicted."""
