"""Conversion between an engine's state and `proto/foretell/v1/snapshot.proto`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import inf, isfinite
from typing import Any

from foretell.model import (
    MOST_DRAFT_TOKENS,
    BatchShape,
    CachedInput,
    EncoderInput,
    EngineConfig,
    EngineSnapshot,
    RequestState,
    RequestTable,
    SchedulerRule,
    Step,
)
from foretell.v1 import snapshot_pb2
from foretell.wire.common import WireError, fields_of

# The columns of `RequestColumns` carry the names of the fields of `RequestTable`.
*_COLUMNS, _INPUTS_COLUMN = RequestTable.__dataclass_fields__
_TARGETS = ("ttft_target_s", "tpot_target_s")
_OPTIONAL_COLUMNS = (
    "left_blocks",
    *_TARGETS,
    "held_blocks",
    "adapter",
    "awaits_grammar",
    "older_tokens",
)
assert tuple(_COLUMNS[-len(_OPTIONAL_COLUMNS) :]) == _OPTIONAL_COLUMNS
_INPUT_FIELDS = EncoderInput._fields
assert _INPUTS_COLUMN == "encoder_inputs"
_SHAPE_FIELDS = tuple(BatchShape.__dataclass_fields__)
_CONFIG_FIELDS = tuple(EngineConfig.__dataclass_fields__)
_SNAPSHOT_FIELDS = (
    *("instance_id", "engine_run_id", "sequence", "taken_unix_s", "published_unix_s"),
    *("free_blocks", "online_ttft_s", "usual_online_blocks"),
    *("step_counter", "prefill_capacity_bound"),
)
"""Fields that are numbers and text; the others are converted."""
_KNOWN_RULES = sum(SchedulerRule)
MOST_APPROXIMATIONS = 32
LONGEST_APPROXIMATION = 64
LONGEST_REASON = 256
MOST_KV_CACHE_GROUPS = 1024
_LEAST_WINDOW = 2
_MOST_TOKENS = 2**31 - 1
_LATEST_S = 1.0  # most of `reported_within_s`


def columns_to_proto(rows: Sequence[RequestState]) -> snapshot_pb2.RequestColumns:
    table = RequestTable.of(rows)
    values = fields_of(table, _COLUMNS)
    for name in _OPTIONAL_COLUMNS:
        if not any(values[name]):
            del values[name]
    columns = snapshot_pb2.RequestColumns(**values)
    if any(table.encoder_inputs):
        columns.encoder_inputs.extend(map(len, table.encoder_inputs))
        inputs = [each for row in table.encoder_inputs for each in row]
        columns.inputs.CopyFrom(encoder_inputs_to_proto(inputs))
    return columns


def encoder_inputs_to_proto(inputs: Sequence[EncoderInput]) -> snapshot_pb2.EncoderInputs:
    """The columns of some multimodal inputs."""
    columns = zip(_INPUT_FIELDS, zip(*inputs, strict=True), strict=True) if inputs else ()
    return snapshot_pb2.EncoderInputs(**dict(columns))


def columns_from_proto(columns: snapshot_pb2.RequestColumns) -> RequestTable:
    """The columns themselves, not copied; raises `WireError` when they differ in length."""
    values: list[Sequence[Any]] = [getattr(columns, name) for name in _COLUMNS]
    for place, name in enumerate(_OPTIONAL_COLUMNS, -len(_OPTIONAL_COLUMNS)):
        if not values[place]:  # left out: all are 0
            values[place] = [0] * len(values[0])
        elif name in _TARGETS:
            _check_targets(name, values[place])
    if len({len(column) for column in values}) > 1:
        lengths = {name: len(column) for name, column in zip(_COLUMNS, values, strict=True)}
        raise WireError(f"request columns differ in length: {lengths}")
    values.append(_inputs_from_proto(columns) if columns.encoder_inputs else [()] * len(values[0]))
    return RequestTable(*values)  # positional: this runs for every engine step


def _inputs_from_proto(columns: snapshot_pb2.RequestColumns) -> list[tuple[EncoderInput, ...]]:
    """The multimodal inputs of each request; `WireError` if they are impossible."""
    counts, prompts = columns.encoder_inputs, columns.prompt_tokens
    fields = [getattr(columns.inputs, name) for name in _INPUT_FIELDS]
    of_inputs = {len(field) for field in fields}
    if len(counts) != len(prompts) or of_inputs != {sum(counts)}:
        raise WireError("encoder inputs: their columns differ in length")
    inputs = list(map(EncoderInput, *fields))
    result, end = [], 0
    for count, prompt in zip(counts, prompts, strict=True):
        first, end = end, end + count
        result.append(tuple(inputs[first:end]))
        _check_inputs(result[-1], prompt)
    return result


def _check_inputs(inputs: Sequence[EncoderInput], prompt_tokens: int) -> None:
    behind = 0
    for each in inputs:
        end = each.offset + each.length
        if not behind <= each.offset <= end <= min(prompt_tokens, _MOST_TOKENS):
            raise WireError("encoder inputs: they must follow each other within their prompt")
        if not each.first_embed <= each.end_embed <= each.length >= each.embeds:
            raise WireError("encoder inputs: embeddings must lie within their input")
        behind = end


def _grown(running: RequestTable, snapshot: snapshot_pb2.EngineSnapshot) -> RequestTable:
    """The running requests, each with the common growth added; `WireError` if it is impossible."""
    computed, output = snapshot.grown_computed_tokens, snapshot.grown_output_tokens
    in_flight = snapshot.grown_in_flight_tokens
    if not (computed or output or in_flight):
        return running
    if in_flight + min(running.in_flight_tokens, default=0) < 0:
        raise WireError("snapshot: fewer tokens than none in flight")
    return replace(
        running,
        computed_tokens=[tokens + computed for tokens in running.computed_tokens],
        output_tokens=[tokens + output for tokens in running.output_tokens],
        in_flight_tokens=[tokens + in_flight for tokens in running.in_flight_tokens],
        scheduled_tokens=[1] * len(running) if computed else running.scheduled_tokens,
        older_tokens=[0] * len(running),  # not needed: the older step decodes, too
    )


def _check_targets(name: str, seconds: Sequence[float]) -> None:
    if not (isfinite(sum(seconds)) and min(seconds) >= 0.0):
        raise WireError(f"{name} must be finite and not negative")


def shape_to_proto(shape: BatchShape) -> snapshot_pb2.BatchShape:
    return snapshot_pb2.BatchShape(**fields_of(shape, _SHAPE_FIELDS))


def shape_from_proto(shape: snapshot_pb2.BatchShape) -> BatchShape:
    return BatchShape(**fields_of(shape, _SHAPE_FIELDS))


def steps_to_proto(steps: Iterable[Step]) -> list[snapshot_pb2.Step]:
    return [
        snapshot_pb2.Step(
            step=step.step,
            started_unix_s=step.started_unix_s,
            duration_s=step.duration_s,
            shape=shape_to_proto(step.shape),
        )
        for step in steps
    ]


def steps_from_proto(steps: Iterable[snapshot_pb2.Step]) -> tuple[Step, ...]:
    return tuple(
        Step(step.step, step.started_unix_s, step.duration_s, shape_from_proto(step.shape))
        for step in steps
    )


def config_to_proto(config: EngineConfig) -> snapshot_pb2.EngineConfig:
    return snapshot_pb2.EngineConfig(**fields_of(config, _CONFIG_FIELDS))


def config_from_proto(config: snapshot_pb2.EngineConfig) -> EngineConfig:
    """Raises `WireError` for a configuration that no engine can run."""
    return _config_from_bytes(config.SerializeToString(deterministic=True))


@lru_cache(maxsize=16)
def _config_from_bytes(config: bytes) -> EngineConfig:
    """Cached, because every snapshot of an engine contains the same configuration."""
    message = snapshot_pb2.EngineConfig.FromString(config)
    fields = fields_of(message, _CONFIG_FIELDS)
    fields["approximations"] = checked_approximations(message.approximations)
    fields["kv_cache_groups"] = message.kv_cache_groups or 1
    fields["rules"] = message.rules & _KNOWN_RULES
    result = EngineConfig(**fields)
    for name in (
        "block_size_tokens",
        "total_blocks",
        "max_num_seqs",
        "max_num_scheduled_tokens",
        "max_model_len",
    ):
        if getattr(result, name) <= 0:
            raise WireError(f"engine config: {name} must be positive")
    if not 0.0 <= result.reported_within_s <= _LATEST_S:
        raise WireError("engine config: reported_within_s is out of range")
    if len(result.steps_with) > LONGEST_REASON:
        raise WireError("engine config: steps_with is too long")
    if result.encoder_cache_size > _MOST_TOKENS:
        raise WireError("engine config: encoder_cache_size is out of range")
    _check_groups(result)
    return result


def _check_groups(config: EngineConfig) -> None:
    """`WireError` for impossible KV cache groups."""
    local, chunk = config.local_kv_cache_groups, config.attention_chunk_tokens
    if not local <= config.kv_cache_groups <= MOST_KV_CACHE_GROUPS:
        raise WireError("engine config: kv_cache_groups is out of range")
    if local and not chunk and config.sliding_window_tokens < _LEAST_WINDOW:
        raise WireError("engine config: local attention needs a window or chunks")
    if chunk % config.block_size_tokens:
        raise WireError("engine config: attention_chunk_tokens must be whole blocks")


def checked_approximations(found: Sequence[str]) -> tuple[str, ...]:
    """The approximations; `WireError` if they are unfit for headers and for labels of metrics."""
    if len(found) > MOST_APPROXIMATIONS:
        raise WireError("too many approximations")
    for each in found:
        if not (0 < len(each) <= LONGEST_APPROXIMATION and each.isascii() and each.isprintable()):
            raise WireError("approximations must be short and printable ASCII")
    return tuple(found)


def checked_reason(reason: str) -> str:
    """The reason why an engine is not described; `WireError` if it is unfit for logs and pages."""
    if not (len(reason) <= LONGEST_REASON and reason.isascii() and reason.isprintable()):
        raise WireError("the reason must be short and printable ASCII")
    return reason


def snapshot_to_proto(snapshot: EngineSnapshot) -> snapshot_pb2.EngineSnapshot:
    return snapshot_pb2.EngineSnapshot(
        **fields_of(snapshot, _SNAPSHOT_FIELDS),
        config=config_to_proto(snapshot.config),
        running=columns_to_proto(snapshot.running),
        waiting=columns_to_proto(snapshot.waiting),
        steps_in_flight=steps_to_proto(snapshot.steps_in_flight),
        completed_steps=steps_to_proto(snapshot.completed_steps),
        drafted_ratio=snapshot.drafted_ratio,
        accepted_ratio=snapshot.accepted_ratio,
        encoder_cache_content=[each.content for each in snapshot.encoder_cache],
        encoder_cache_embeds=[each.embeds for each in snapshot.encoder_cache],
    )


def snapshot_from_proto(snapshot: snapshot_pb2.EngineSnapshot) -> EngineSnapshot:
    """Raises `WireError` when the message contradicts itself."""
    if not (snapshot.online_ttft_s >= 0.0 and 0.0 <= snapshot.usual_online_blocks < inf):
        raise WireError("snapshot: what is expected of online requests must not be negative")
    config = config_from_proto(snapshot.config)
    running, waiting = map(columns_from_proto, (snapshot.running, snapshot.waiting))
    cache: tuple[CachedInput, ...] = ()
    if config.max_num_encoder_input_tokens:
        cache = _encoder_cache(snapshot, config, (running, waiting))
    return EngineSnapshot(
        **fields_of(snapshot, _SNAPSHOT_FIELDS),
        config=config,
        running=_grown(running, snapshot),
        waiting=waiting,
        steps_in_flight=steps_from_proto(snapshot.steps_in_flight),
        completed_steps=steps_from_proto(snapshot.completed_steps),
        drafted_ratio=draft_ratios(snapshot.drafted_ratio),
        accepted_ratio=draft_ratios(snapshot.accepted_ratio),
        encoder_cache=cache,
    )


def _encoder_cache(
    snapshot: snapshot_pb2.EngineSnapshot, config: EngineConfig, tables: Iterable[RequestTable]
) -> tuple[CachedInput, ...]:
    """The entries of the encoder cache; `WireError` if they are impossible."""
    contents, embeds = snapshot.encoder_cache_content, snapshot.encoder_cache_embeds
    cached = set(contents)
    if not len(cached) == len(contents) == len(embeds):
        raise WireError("encoder cache: its columns differ in length, or a content is there twice")
    if sum(embeds) > config.encoder_cache_size:
        raise WireError("encoder cache: more embeddings than fit")
    for table in tables:
        for inputs in table.encoder_inputs:
            if not cached.issuperset(each.content for each in inputs if each.held):
                raise WireError("encoder cache: a request needs what is not there")
    return tuple(map(CachedInput, contents, embeds))


def draft_ratios(ratios: Sequence[float]) -> tuple[float, ...]:
    """Received ratios of draft tokens as in `EngineSnapshot`; `WireError` if impossible."""
    if not ratios:
        return ()
    if not all(1.0 >= before >= after >= 0.0 for before, after in pairwise((1.0, *ratios))):
        raise WireError("snapshot: ratios of draft tokens must descend within [0, 1]")
    return tuple(ratios[:MOST_DRAFT_TOKENS])
