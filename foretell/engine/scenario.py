"""Scenarios of the replay format: an engine's configuration and its requests.

A scenario is a JSON object `{"name", "config": {...}, "requests": [{...}, ...]}`. All keys but a
request's `id` and `prompt` are optional; the defaults are those of the classes below.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from foretell.model import (
    MOST_DRAFT_TOKENS,
    EncoderInput,
    EngineConfig,
    SchedulerRule,
    content_number,
)

_Whole = Annotated[int, Field(strict=True)]
_Count = Annotated[_Whole, Field(ge=0)]
_Positive = Annotated[_Whole, Field(ge=1)]
_Ratio = Annotated[float, Field(strict=True, ge=0, le=1)]
_Ratios = Annotated[tuple[_Ratio, ...], Field(max_length=MOST_DRAFT_TOKENS)]


_OURS = {
    "async_": "async_scheduling",
    "attention_chunk_size": "attention_chunk_tokens",
    "block_size": "block_size_tokens",
    "local_attention_groups": "local_kv_cache_groups",
    "scheduler_reserve_full_isl": "reserve_full_isl",
    "sliding_window": "sliding_window_tokens",
    "use_eagle_block_drop": "drops_last_hit",
    "watermark": "watermark_ratio",
}
"""The names in `EngineConfig` of fields of `ReplayConfig`, if they differ."""
_KNOWN = {field.name for field in fields(EngineConfig)}


class ScenarioError(ValueError):
    """The scenario is malformed; the message names the key."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReplayConfig(_Part):
    """`config` of a scenario, with vLLM's names; `async` is `async_`."""

    async_: StrictBool = Field(False, alias="async")
    block_size: _Positive = 16
    num_blocks: Annotated[_Whole, Field(ge=2)] = 257
    """Including the null block."""
    max_model_len: _Positive = 2048
    max_num_seqs: _Positive = 8
    max_num_active_seqs: _Positive | None = None
    max_num_batched_tokens: _Positive = 256
    max_num_scheduled_tokens: _Positive | None = None
    long_prefill_token_threshold: _Count = 0
    long_prefill_token_threshold_adaptive: StrictBool = False
    long_prefill_threshold_when_alone: StrictBool = False
    """Not a setting of vLLM, but the behaviour of versions before 0.31."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_prefix_caching: StrictBool = True
    enable_chunked_prefill: StrictBool = True
    watermark: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.0
    scheduler_reserve_full_isl: StrictBool = True
    full_attention_groups: _Count = 1
    """KV cache groups whose layers attend to all tokens. `sliding_window` and
    `attention_chunk_size` are as in vLLM's `SlidingWindowSpec` and `ChunkedLocalAttentionSpec`."""
    local_attention_groups: _Count = 0
    """KV cache groups behind them whose layers have a sliding window or chunks."""
    sliding_window: Annotated[_Whole, Field(ge=2)] | None = None
    attention_chunk_size: _Positive | None = None
    """A multiple of the block size."""
    num_speculative_tokens: Annotated[_Whole, Field(ge=0, le=MOST_DRAFT_TOKENS)] = 0
    num_lookahead_tokens: _Count = 0
    """Like the next field, not a setting of vLLM: it follows from the drafting method."""
    use_eagle_block_drop: StrictBool = False
    drafted_ratio: _Ratios = ()
    """Shares of steps that draft at least 1, 2, ... tokens, if that is known before the step."""
    accepted_ratio: _Ratios = ()
    """Shares of steps that accept at least 1, 2, ... tokens."""
    max_loras: _Count = 0
    max_num_encoder_input_tokens: _Count = 0
    """The most embeddings that one step may encode; 0: multimodal inputs are not supported."""
    encoder_cache_size: _Count = 0
    disable_chunked_mm_input: StrictBool = False
    num_prefill_lookahead_tokens: Annotated[_Whole, Field(ge=0, le=1)] = 0
    """Like the next field, not a setting of vLLM: it follows from the drafting method."""
    num_hash_lookahead_tokens: _Count = 0
    prefill_schedule_interval: _Count = 0
    """In iterations of the loop around the scheduler; 0: prefill is never deferred."""
    rules: tuple[str, ...] = ()
    """Not a setting of vLLM: how its version differs from 0.32, by the names of `SchedulerRule` in
    lower case."""

    @field_validator("rules")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name.upper() not in SchedulerRule.__members__]:
            raise ValueError(f"unknown rule {unknown[0]!r}")
        return value

    @field_validator("max_num_active_seqs")
    @classmethod
    def _fits(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value > info.data.get("max_num_seqs", value):
            raise ValueError("must be at most max_num_seqs")
        return value

    @model_validator(mode="after")
    def _has_groups(self) -> Self:
        sees = (self.sliding_window, self.attention_chunk_size)
        if not self.full_attention_groups + self.local_attention_groups:
            raise ValueError("needs a KV cache group")
        if sum(tokens is not None for tokens in sees) != bool(self.local_attention_groups):
            raise ValueError("local attention has either a window or a chunk size")
        if self.attention_chunk_size and self.attention_chunk_size % self.block_size:
            raise ValueError("attention_chunk_size must be a multiple of block_size")
        return self

    def engine_config(self) -> EngineConfig:
        known: dict[str, Any] = {
            _OURS.get(name, name): value for name, value in self if value is not None
        }
        budget = self.max_num_scheduled_tokens or self.max_num_batched_tokens
        known |= {
            "model_name": "replay",
            "total_blocks": self.num_blocks - 1,
            "max_num_scheduled_tokens": min(budget, self.max_num_batched_tokens),
            "kv_cache_groups": self.full_attention_groups + self.local_attention_groups,
            "rules": sum(SchedulerRule[name.upper()] for name in set(self.rules)),
        }
        return EngineConfig(**{name: known[name] for name in known if name in _KNOWN})


class ReplayRequest(_Part):
    """One of a scenario's `requests`; steps are iterations of the engine loop."""

    id: Annotated[str, Field(min_length=1)]
    prompt: Annotated[tuple[tuple[str, _Count], ...], Field(min_length=1)]
    """Named runs of tokens (`engine.content.Segment`)."""
    arrival_step: _Count = 0
    priority: _Whole = 0
    max_tokens: _Positive = 16
    stop_after: _Positive | None = None
    """The number of the output token that is EOS; None: there is no EOS."""
    abort_step: _Count | None = None
    adapter: _Count = 0
    """The number of its LoRA adapter; 0: none."""
    grammar_step: _Count = 0
    """The first iteration in which the grammar of its structured output is compiled."""

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for _, tokens in self.prompt)


class ReplayInput(_Part):
    """A multimodal input, such as an image: a named run of tokens in prompts."""

    length: _Positive
    """Its number of tokens; prompts must have all of them."""
    embeds: _Positive | None = None
    """The number of consecutive embeddings among them; by default all from `first_embed` on."""
    first_embed: _Count = 0
    """The first token that is an embedding."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.first_embed + self.num_embeds > self.length:
            raise ValueError("embeddings must lie within their input")
        return self

    @property
    def num_embeds(self) -> int:
        return self.embeds or self.length - self.first_embed


class Scenario(_Part):
    """A replay's input."""

    name: str = ""
    config: ReplayConfig = ReplayConfig()
    requests: tuple[ReplayRequest, ...] = ()
    encoder_inputs: dict[str, ReplayInput] = {}
    """Multimodal inputs by the name of their run of tokens."""

    def inputs_of(self, request: ReplayRequest) -> Iterator[tuple[str, EncoderInput]]:
        """The multimodal inputs of a prompt, with their names."""
        offset = 0
        for name, tokens in request.prompt:
            known = self.encoder_inputs.get(name)
            if known is not None:
                first, embeds = known.first_embed, known.num_embeds
                place = content_number(name), offset, tokens
                yield name, EncoderInput(*place, embeds, first, first + embeds)
            offset += tokens


def parse_scenario(data: object) -> Scenario:
    """Parse the scenario that decoded JSON describes; raises `ScenarioError`."""
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        what = first["msg"].removeprefix("Value error, ")
        raise ScenarioError(f"{where.lstrip('.') or 'the scenario'}: {what}") from error
    longest, seen = scenario.config.max_model_len, set()
    for index, request in enumerate(scenario.requests):
        if request.id in seen:
            raise ScenarioError(f"requests[{index}].id: {request.id!r} is given twice")
        if not 1 <= request.prompt_tokens <= longest:
            limit = f"1 to {longest} tokens (max_model_len)"
            raise ScenarioError(f"requests[{index}].prompt: must have {limit}")
        _check_inputs(scenario, request, f"requests[{index}].prompt")
        seen.add(request.id)
    return scenario


def _check_inputs(scenario: Scenario, request: ReplayRequest, where: str) -> None:
    """`ScenarioError` for multimodal inputs that are too large for the engine, or that are cut."""
    config = scenario.config
    for name, found in scenario.inputs_of(request):
        if found.length != scenario.encoder_inputs[name].length:
            raise ScenarioError(f"{where}: {name!r} must have all its tokens")
        if found.embeds > min(config.max_num_encoder_input_tokens, config.encoder_cache_size):
            raise ScenarioError(f"{where}: {name!r} has too many embeddings for this engine")
