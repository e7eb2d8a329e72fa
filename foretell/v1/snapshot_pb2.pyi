from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineConfig(_message.Message):
    __slots__ = ("model_name", "block_size_tokens", "total_blocks", "max_num_seqs", "max_num_active_seqs", "max_num_scheduled_tokens", "max_model_len", "long_prefill_token_threshold", "policy", "enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "watermark_ratio", "reserve_full_isl", "engine_version", "emulated", "long_prefill_token_threshold_adaptive", "max_num_batched_tokens", "long_prefill_threshold_when_alone", "approximations", "kv_cache_groups", "local_kv_cache_groups", "sliding_window_tokens", "attention_chunk_tokens", "num_speculative_tokens", "num_lookahead_tokens", "drops_last_hit", "max_loras", "max_num_encoder_input_tokens", "encoder_cache_size", "disable_chunked_mm_input", "num_prefill_lookahead_tokens", "num_hash_lookahead_tokens", "rules", "steps_with", "prefill_schedule_interval", "reported_within_s", "co_schedules")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_ACTIVE_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SCHEDULED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    LONG_PREFILL_TOKEN_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PREFIX_CACHING_FIELD_NUMBER: _ClassVar[int]
    ENABLE_CHUNKED_PREFILL_FIELD_NUMBER: _ClassVar[int]
    ASYNC_SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_RATIO_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FULL_ISL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    LONG_PREFILL_TOKEN_THRESHOLD_ADAPTIVE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LONG_PREFILL_THRESHOLD_WHEN_ALONE_FIELD_NUMBER: _ClassVar[int]
    APPROXIMATIONS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_KV_CACHE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    SLIDING_WINDOW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOOKAHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DROPS_LAST_HIT_FIELD_NUMBER: _ClassVar[int]
    MAX_LORAS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_ENCODER_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_CACHE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DISABLE_CHUNKED_MM_INPUT_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_LOOKAHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HASH_LOOKAHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    STEPS_WITH_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SCHEDULE_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    REPORTED_WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    CO_SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    block_size_tokens: int
    total_blocks: int
    max_num_seqs: int
    max_num_active_seqs: int
    max_num_scheduled_tokens: int
    max_model_len: int
    long_prefill_token_threshold: int
    policy: str
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    async_scheduling: bool
    watermark_ratio: float
    reserve_full_isl: bool
    engine_version: str
    emulated: bool
    long_prefill_token_threshold_adaptive: bool
    max_num_batched_tokens: int
    long_prefill_threshold_when_alone: bool
    approximations: _containers.RepeatedScalarFieldContainer[str]
    kv_cache_groups: int
    local_kv_cache_groups: int
    sliding_window_tokens: int
    attention_chunk_tokens: int
    num_speculative_tokens: int
    num_lookahead_tokens: int
    drops_last_hit: bool
    max_loras: int
    max_num_encoder_input_tokens: int
    encoder_cache_size: int
    disable_chunked_mm_input: bool
    num_prefill_lookahead_tokens: int
    num_hash_lookahead_tokens: int
    rules: int
    steps_with: str
    prefill_schedule_interval: int
    reported_within_s: float
    co_schedules: bool
    def __init__(self, model_name: _Optional[str] = ..., block_size_tokens: _Optional[int] = ..., total_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_active_seqs: _Optional[int] = ..., max_num_scheduled_tokens: _Optional[int] = ..., max_model_len: _Optional[int] = ..., long_prefill_token_threshold: _Optional[int] = ..., policy: _Optional[str] = ..., enable_prefix_caching: bool = ..., enable_chunked_prefill: bool = ..., async_scheduling: bool = ..., watermark_ratio: _Optional[float] = ..., reserve_full_isl: bool = ..., engine_version: _Optional[str] = ..., emulated: bool = ..., long_prefill_token_threshold_adaptive: bool = ..., max_num_batched_tokens: _Optional[int] = ..., long_prefill_threshold_when_alone: bool = ..., approximations: _Optional[_Iterable[str]] = ..., kv_cache_groups: _Optional[int] = ..., local_kv_cache_groups: _Optional[int] = ..., sliding_window_tokens: _Optional[int] = ..., attention_chunk_tokens: _Optional[int] = ..., num_speculative_tokens: _Optional[int] = ..., num_lookahead_tokens: _Optional[int] = ..., drops_last_hit: bool = ..., max_loras: _Optional[int] = ..., max_num_encoder_input_tokens: _Optional[int] = ..., encoder_cache_size: _Optional[int] = ..., disable_chunked_mm_input: bool = ..., num_prefill_lookahead_tokens: _Optional[int] = ..., num_hash_lookahead_tokens: _Optional[int] = ..., rules: _Optional[int] = ..., steps_with: _Optional[str] = ..., prefill_schedule_interval: _Optional[int] = ..., reported_within_s: _Optional[float] = ..., co_schedules: bool = ...) -> None: ...

class BatchShape(_message.Message):
    __slots__ = ("prefill_seqs", "prefill_tokens", "prefill_pairs", "decode_seqs", "decode_pairs", "draft_tokens")
    PREFILL_SEQS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_PAIRS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SEQS_FIELD_NUMBER: _ClassVar[int]
    DECODE_PAIRS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prefill_seqs: int
    prefill_tokens: int
    prefill_pairs: int
    decode_seqs: int
    decode_pairs: int
    draft_tokens: int
    def __init__(self, prefill_seqs: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., prefill_pairs: _Optional[int] = ..., decode_seqs: _Optional[int] = ..., decode_pairs: _Optional[int] = ..., draft_tokens: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("step", "started_unix_s", "duration_s", "shape")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    step: int
    started_unix_s: float
    duration_s: float
    shape: BatchShape
    def __init__(self, step: _Optional[int] = ..., started_unix_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., shape: _Optional[_Union[BatchShape, _Mapping]] = ...) -> None: ...

class EncoderInputs(_message.Message):
    __slots__ = ("content", "offset", "length", "embeds", "first_embed", "end_embed", "held")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    EMBEDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_EMBED_FIELD_NUMBER: _ClassVar[int]
    END_EMBED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    content: _containers.RepeatedScalarFieldContainer[int]
    offset: _containers.RepeatedScalarFieldContainer[int]
    length: _containers.RepeatedScalarFieldContainer[int]
    embeds: _containers.RepeatedScalarFieldContainer[int]
    first_embed: _containers.RepeatedScalarFieldContainer[int]
    end_embed: _containers.RepeatedScalarFieldContainer[int]
    held: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, content: _Optional[_Iterable[int]] = ..., offset: _Optional[_Iterable[int]] = ..., length: _Optional[_Iterable[int]] = ..., embeds: _Optional[_Iterable[int]] = ..., first_embed: _Optional[_Iterable[int]] = ..., end_embed: _Optional[_Iterable[int]] = ..., held: _Optional[_Iterable[int]] = ...) -> None: ...

class RequestColumns(_message.Message):
    __slots__ = ("request_id", "foretell_id", "prompt_tokens", "output_tokens", "computed_tokens", "cached_tokens", "max_tokens", "priority", "predicted_output_tokens", "arrival_unix_s", "scheduled_tokens", "in_flight_tokens", "preemptions", "left_blocks", "ttft_target_s", "tpot_target_s", "held_blocks", "adapter", "awaits_grammar", "encoder_inputs", "inputs", "older_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FORETELL_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    LEFT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TTFT_TARGET_S_FIELD_NUMBER: _ClassVar[int]
    TPOT_TARGET_S_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    AWAITS_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    ENCODER_INPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OLDER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: _containers.RepeatedScalarFieldContainer[str]
    foretell_id: _containers.RepeatedScalarFieldContainer[str]
    prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    output_tokens: _containers.RepeatedScalarFieldContainer[int]
    computed_tokens: _containers.RepeatedScalarFieldContainer[int]
    cached_tokens: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: _containers.RepeatedScalarFieldContainer[int]
    priority: _containers.RepeatedScalarFieldContainer[int]
    predicted_output_tokens: _containers.RepeatedScalarFieldContainer[float]
    arrival_unix_s: _containers.RepeatedScalarFieldContainer[float]
    scheduled_tokens: _containers.RepeatedScalarFieldContainer[int]
    in_flight_tokens: _containers.RepeatedScalarFieldContainer[int]
    preemptions: _containers.RepeatedScalarFieldContainer[int]
    left_blocks: _containers.RepeatedScalarFieldContainer[int]
    ttft_target_s: _containers.RepeatedScalarFieldContainer[float]
    tpot_target_s: _containers.RepeatedScalarFieldContainer[float]
    held_blocks: _containers.RepeatedScalarFieldContainer[int]
    adapter: _containers.RepeatedScalarFieldContainer[int]
    awaits_grammar: _containers.RepeatedScalarFieldContainer[int]
    encoder_inputs: _containers.RepeatedScalarFieldContainer[int]
    inputs: EncoderInputs
    older_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[_Iterable[str]] = ..., foretell_id: _Optional[_Iterable[str]] = ..., prompt_tokens: _Optional[_Iterable[int]] = ..., output_tokens: _Optional[_Iterable[int]] = ..., computed_tokens: _Optional[_Iterable[int]] = ..., cached_tokens: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[_Iterable[int]] = ..., priority: _Optional[_Iterable[int]] = ..., predicted_output_tokens: _Optional[_Iterable[float]] = ..., arrival_unix_s: _Optional[_Iterable[float]] = ..., scheduled_tokens: _Optional[_Iterable[int]] = ..., in_flight_tokens: _Optional[_Iterable[int]] = ..., preemptions: _Optional[_Iterable[int]] = ..., left_blocks: _Optional[_Iterable[int]] = ..., ttft_target_s: _Optional[_Iterable[float]] = ..., tpot_target_s: _Optional[_Iterable[float]] = ..., held_blocks: _Optional[_Iterable[int]] = ..., adapter: _Optional[_Iterable[int]] = ..., awaits_grammar: _Optional[_Iterable[int]] = ..., encoder_inputs: _Optional[_Iterable[int]] = ..., inputs: _Optional[_Union[EncoderInputs, _Mapping]] = ..., older_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class EngineSnapshot(_message.Message):
    __slots__ = ("instance_id", "engine_run_id", "sequence", "taken_unix_s", "published_unix_s", "config", "free_blocks", "running", "waiting", "steps_in_flight", "completed_steps", "online_ttft_s", "usual_online_blocks", "drafted_ratio", "accepted_ratio", "grown_computed_tokens", "grown_output_tokens", "grown_in_flight_tokens", "encoder_cache_content", "encoder_cache_embeds", "step_counter", "prefill_capacity_bound", "unpredicted")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_STEPS_FIELD_NUMBER: _ClassVar[int]
    ONLINE_TTFT_S_FIELD_NUMBER: _ClassVar[int]
    USUAL_ONLINE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_RATIO_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_RATIO_FIELD_NUMBER: _ClassVar[int]
    GROWN_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROWN_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROWN_IN_FLIGHT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_CACHE_CONTENT_FIELD_NUMBER: _ClassVar[int]
    ENCODER_CACHE_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNTER_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CAPACITY_BOUND_FIELD_NUMBER: _ClassVar[int]
    UNPREDICTED_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    engine_run_id: str
    sequence: int
    taken_unix_s: float
    published_unix_s: float
    config: EngineConfig
    free_blocks: int
    running: RequestColumns
    waiting: RequestColumns
    steps_in_flight: _containers.RepeatedCompositeFieldContainer[Step]
    completed_steps: _containers.RepeatedCompositeFieldContainer[Step]
    online_ttft_s: float
    usual_online_blocks: float
    drafted_ratio: _containers.RepeatedScalarFieldContainer[float]
    accepted_ratio: _containers.RepeatedScalarFieldContainer[float]
    grown_computed_tokens: int
    grown_output_tokens: int
    grown_in_flight_tokens: int
    encoder_cache_content: _containers.RepeatedScalarFieldContainer[int]
    encoder_cache_embeds: _containers.RepeatedScalarFieldContainer[int]
    step_counter: int
    prefill_capacity_bound: bool
    unpredicted: str
    def __init__(self, instance_id: _Optional[str] = ..., engine_run_id: _Optional[str] = ..., sequence: _Optional[int] = ..., taken_unix_s: _Optional[float] = ..., published_unix_s: _Optional[float] = ..., config: _Optional[_Union[EngineConfig, _Mapping]] = ..., free_blocks: _Optional[int] = ..., running: _Optional[_Union[RequestColumns, _Mapping]] = ..., waiting: _Optional[_Union[RequestColumns, _Mapping]] = ..., steps_in_flight: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., completed_steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., online_ttft_s: _Optional[float] = ..., usual_online_blocks: _Optional[float] = ..., drafted_ratio: _Optional[_Iterable[float]] = ..., accepted_ratio: _Optional[_Iterable[float]] = ..., grown_computed_tokens: _Optional[int] = ..., grown_output_tokens: _Optional[int] = ..., grown_in_flight_tokens: _Optional[int] = ..., encoder_cache_content: _Optional[_Iterable[int]] = ..., encoder_cache_embeds: _Optional[_Iterable[int]] = ..., step_counter: _Optional[int] = ..., prefill_capacity_bound: bool = ..., unpredicted: _Optional[str] = ...) -> None: ...
