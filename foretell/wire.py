"""The bridge between the library's nouns and `proto/foretell/v1`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import inf, isfinite
from typing import Any

from foretell.length.conversation import (
    MOST_EXCHANGES,
    PLAIN,
    Conversation,
    Exchange,
    Kind,
    head_and_tail,
)
from foretell.length.prefix import MOST_CHUNKS
from foretell.model import (
    MOST_DRAFT_TOKENS,
    BatchShape,
    CachedInput,
    EncoderInput,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    Load,
    Prediction,
    RequestSpec,
    RequestState,
    RequestTable,
    Slo,
    Step,
)
from foretell.v1 import predictor_pb2, snapshot_pb2, tagger_pb2

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
_LOAD_FIELDS = Load._fields
MOST_APPROXIMATIONS = 32
LONGEST_APPROXIMATION = 64
MOST_KV_CACHE_GROUPS = 1024
_LEAST_WINDOW = 2
_MOST_TOKENS = 2**31 - 1


class WireError(ValueError):
    """A message that decodes as protobuf but contradicts itself."""


def columns_to_proto(rows: Sequence[RequestState]) -> snapshot_pb2.RequestColumns:
    table = RequestTable.of(rows)
    values = {name: getattr(table, name) for name in _COLUMNS}
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
        if not values[place]:  # nobody makes use of it
            values[place] = [0] * len(values[0])
        elif name in _TARGETS:
            _check_targets(name, values[place])
    if len({len(column) for column in values}) > 1:
        lengths = {name: len(column) for name, column in zip(_COLUMNS, values, strict=True)}
        raise WireError(f"request columns differ in length: {lengths}")
    values.append(_inputs_from_proto(columns) if columns.encoder_inputs else [()] * len(values[0]))
    return RequestTable(*values)  # positional: this runs for every engine step


def _inputs_from_proto(columns: snapshot_pb2.RequestColumns) -> list[tuple[EncoderInput, ...]]:
    """The multimodal inputs of each request; `WireError` where they cannot be."""
    counts, prompts = columns.encoder_inputs, columns.prompt_tokens
    told = [getattr(columns.inputs, name) for name in _INPUT_FIELDS]
    if {len(counts), *map(len, told)} != {len(prompts), sum(counts)} or len(counts) != len(prompts):
        raise WireError("encoder inputs: their columns differ in length")
    inputs = list(map(EncoderInput, *told))
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
    """The running requests with what all of them have grown by; `WireError` where they cannot."""
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
        older_tokens=[0] * len(running),  # it decodes, too
    )


def _check_targets(name: str, seconds: Sequence[float]) -> None:
    if not (isfinite(sum(seconds)) and min(seconds) >= 0.0):
        raise WireError(f"{name} must be finite and not negative")


def shape_to_proto(shape: BatchShape) -> snapshot_pb2.BatchShape:
    return snapshot_pb2.BatchShape(**{name: getattr(shape, name) for name in _SHAPE_FIELDS})


def shape_from_proto(shape: snapshot_pb2.BatchShape) -> BatchShape:
    return BatchShape(**{name: getattr(shape, name) for name in _SHAPE_FIELDS})


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
    return snapshot_pb2.EngineConfig(**{name: getattr(config, name) for name in _CONFIG_FIELDS})


def config_from_proto(config: snapshot_pb2.EngineConfig) -> EngineConfig:
    """Raises `WireError` for a configuration no engine can run."""
    return _config_from_bytes(config.SerializeToString(deterministic=True))


@lru_cache(maxsize=16)
def _config_from_bytes(config: bytes) -> EngineConfig:
    """Kept: every snapshot of an engine's life brings the same."""
    message = snapshot_pb2.EngineConfig.FromString(config)
    fields = {name: getattr(message, name) for name in _CONFIG_FIELDS}
    fields["approximations"] = _approximations(message.approximations)
    fields["kv_cache_groups"] = message.kv_cache_groups or 1
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
    if result.encoder_cache_size > _MOST_TOKENS:
        raise WireError("engine config: encoder_cache_size is out of range")
    _check_groups(result)
    return result


def _check_groups(config: EngineConfig) -> None:
    """`WireError` for KV cache groups that cannot be."""
    local, chunk = config.local_kv_cache_groups, config.attention_chunk_tokens
    if not local <= config.kv_cache_groups <= MOST_KV_CACHE_GROUPS:
        raise WireError("engine config: kv_cache_groups is out of range")
    if local and not chunk and config.sliding_window_tokens < _LEAST_WINDOW:
        raise WireError("engine config: local attention needs a window or chunks")
    if chunk % config.block_size_tokens:
        raise WireError("engine config: attention_chunk_tokens must be whole blocks")


def _approximations(found: Sequence[str]) -> tuple[str, ...]:
    """They end up in headers and in labels of metrics; `WireError` for what may not be there."""
    if len(found) > MOST_APPROXIMATIONS:
        raise WireError("too many approximations")
    for each in found:
        if not (0 < len(each) <= LONGEST_APPROXIMATION and each.isascii() and each.isprintable()):
            raise WireError("approximations must be short and printable ASCII")
    return tuple(found)


def snapshot_to_proto(snapshot: EngineSnapshot) -> snapshot_pb2.EngineSnapshot:
    return snapshot_pb2.EngineSnapshot(
        instance_id=snapshot.instance_id,
        engine_run_id=snapshot.engine_run_id,
        sequence=snapshot.sequence,
        taken_unix_s=snapshot.taken_unix_s,
        published_unix_s=snapshot.published_unix_s,
        config=config_to_proto(snapshot.config),
        free_blocks=snapshot.free_blocks,
        running=columns_to_proto(snapshot.running),
        waiting=columns_to_proto(snapshot.waiting),
        steps_in_flight=steps_to_proto(snapshot.steps_in_flight),
        completed_steps=steps_to_proto(snapshot.completed_steps),
        online_ttft_s=snapshot.online_ttft_s,
        usual_online_blocks=snapshot.usual_online_blocks,
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
        instance_id=snapshot.instance_id,
        engine_run_id=snapshot.engine_run_id,
        sequence=snapshot.sequence,
        taken_unix_s=snapshot.taken_unix_s,
        published_unix_s=snapshot.published_unix_s,
        config=config,
        free_blocks=snapshot.free_blocks,
        running=_grown(running, snapshot),
        waiting=waiting,
        steps_in_flight=steps_from_proto(snapshot.steps_in_flight),
        completed_steps=steps_from_proto(snapshot.completed_steps),
        online_ttft_s=snapshot.online_ttft_s,
        usual_online_blocks=snapshot.usual_online_blocks,
        drafted_ratio=draft_ratios(snapshot.drafted_ratio),
        accepted_ratio=draft_ratios(snapshot.accepted_ratio),
        encoder_cache=cache,
    )


def _encoder_cache(
    snapshot: snapshot_pb2.EngineSnapshot, config: EngineConfig, tables: Iterable[RequestTable]
) -> tuple[CachedInput, ...]:
    """What is in the encoder cache; `WireError` where that cannot be."""
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
    """What was received of `EngineSnapshot`'s ratios; raises `WireError` where it cannot be."""
    if not all(1.0 >= before >= after >= 0.0 for before, after in pairwise((1.0, *ratios))):
        raise WireError("snapshot: ratios of draft tokens must descend within [0, 1]")
    return tuple(ratios[:MOST_DRAFT_TOKENS])


def length_to_proto(length: LengthEstimate) -> tagger_pb2.LengthEstimate:
    return tagger_pb2.LengthEstimate(
        expected_tokens=length.expected_tokens,
        quantiles=[tagger_pb2.Quantile(level=q, tokens=tokens) for q, tokens in length.quantiles],
        source=length.source,
    )


def length_from_proto(length: tagger_pb2.LengthEstimate) -> LengthEstimate:
    """Raises `WireError` for figures that are no lengths or no levels."""
    _check_tokens((length.expected_tokens, *(q.tokens for q in length.quantiles)))
    _check_levels([q.level for q in length.quantiles])
    return LengthEstimate(
        expected_tokens=length.expected_tokens,
        quantiles=tuple((q.level, q.tokens) for q in length.quantiles),
        source=length.source,
    )


def estimates_to_proto(
    estimates: Iterable[tuple[int, LengthEstimate]],
) -> tagger_pb2.EstimateBatch:
    """Estimates by the numbers of their requests."""
    batch = tagger_pb2.EstimateBatch()
    alike: dict[tuple[object, ...], tagger_pb2.Estimates] = {}
    for number, length in estimates:
        levels = [level for level, _ in length.quantiles]
        key = (length.source, *levels)
        if key not in alike:
            alike[key] = batch.estimates.add(source=length.source, levels=levels)
        alike[key].numbers.append(number)
        alike[key].expected_tokens.append(length.expected_tokens)
        alike[key].tokens.extend([tokens for _, tokens in length.quantiles])
    return batch


def estimates_from_proto(batch: tagger_pb2.EstimateBatch) -> list[tuple[int, LengthEstimate]]:
    """Raises `WireError` for columns of the wrong length, and for figures as one estimate would."""
    found = []
    for alike in batch.estimates:
        levels, tokens, width = tuple(alike.levels), list(alike.tokens), len(alike.levels)
        count = len(alike.numbers)
        if len(alike.expected_tokens) != count or len(tokens) != count * width:
            raise WireError(f"estimates: {count} requests have figures of another number")
        _check_tokens((*alike.expected_tokens, *tokens))
        _check_levels(levels)
        for i, (number, expected) in enumerate(
            zip(alike.numbers, alike.expected_tokens, strict=True)
        ):
            quantiles = tuple(zip(levels, tokens[i * width : (i + 1) * width], strict=True))
            found.append((number, LengthEstimate(expected, quantiles, alike.source)))
    return found


def _check_tokens(figures: Sequence[float]) -> None:
    if not all(map(isfinite, figures)) or min(figures, default=0.0) < 0.0:
        raise WireError("length: tokens must be finite and not negative")


def _check_levels(levels: Sequence[float]) -> None:
    if not all(low < high for low, high in pairwise((0.0, *levels, 1.0))):
        raise WireError("length: levels must ascend within (0, 1)")


def request_to_proto(request: RequestSpec) -> predictor_pb2.RequestSpec:
    return predictor_pb2.RequestSpec(
        request_id=request.request_id,
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        length=length_to_proto(request.length),
        priority=request.priority,
        sequences=request.sequences,
        cached_tokens=request.cached_tokens,
        prefix=request.prefix,
        prefix_chunk_tokens=request.prefix_chunk_tokens,
        x_request_id=request.x_request_id,
        ttft_target_s=request.ttft_target_s,
        tpot_target_s=request.tpot_target_s,
    )


def request_from_proto(request: predictor_pb2.RequestSpec) -> RequestSpec:
    """Raises `WireError` for a request without a prompt, or with an impossible length or prefix."""
    if request.prompt_tokens <= 0:
        raise WireError("request: prompt_tokens must be positive")
    if request.prefix and not 1 <= request.prefix_chunk_tokens < inf:
        raise WireError("request: prefix_chunk_tokens must be at least 1 where there is a prefix")
    return RequestSpec(
        request_id=request.request_id,
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        length=length_from_proto(request.length),
        priority=request.priority,
        sequences=max(1, request.sequences),
        cached_tokens=min(request.cached_tokens, request.prompt_tokens),
        prefix=tuple(request.prefix[:MOST_CHUNKS]),
        prefix_chunk_tokens=request.prefix_chunk_tokens,
        slo=Slo(*(_target(x) for x in (request.ttft_target_s, request.tpot_target_s))),
        x_request_id=request.x_request_id,
    )


def ended_to_proto(request: RequestSpec, *, answered: bool) -> predictor_pb2.CompleteRequest:
    return predictor_pb2.CompleteRequest(
        request_id=request.request_id, answered=answered, x_request_id=request.x_request_id
    )


def _target(seconds: float) -> float:
    if not 0.0 <= seconds < inf:
        raise WireError("request: targets must be finite and not negative")
    return seconds or inf


def load_to_proto(load: Load) -> predictor_pb2.Load:
    return predictor_pb2.Load(**{name: getattr(load, name) for name in _LOAD_FIELDS})


def load_from_proto(load: predictor_pb2.Load) -> Load:
    return Load(**{name: getattr(load, name) for name in _LOAD_FIELDS})


def prediction_to_proto(prediction: Prediction) -> predictor_pb2.PredictResponse:
    return predictor_pb2.PredictResponse(
        instance_id=prediction.instance_id,
        ttft_s=prediction.ttft_s,
        e2e_s=prediction.e2e_s,
        tpot_s=prediction.tpot_s,
        preemptions=prediction.preemptions,
        snapshot_age_s=prediction.snapshot_age_s,
        load=load_to_proto(prediction.load),
        calibration_steps=prediction.calibration_steps,
        ttft_quantiles=_quantiles_to_proto(prediction.ttft_quantiles),
        e2e_quantiles=_quantiles_to_proto(prediction.e2e_quantiles),
        added_ttft_s=prediction.added_ttft_s,
        added_e2e_s=prediction.added_e2e_s,
        cached_tokens=prediction.cached_tokens,
        approximations=prediction.approximations,
    )


def prediction_from_proto(response: predictor_pb2.PredictResponse) -> Prediction:
    """Raises `WireError` for latencies that are no durations; infinity (never) is one."""
    if not (response.ttft_s >= 0 and response.e2e_s >= 0 and response.tpot_s >= 0):
        raise WireError("prediction: latencies must not be negative")
    if not (response.added_ttft_s > -inf and response.added_e2e_s > -inf):
        raise WireError("prediction: what is added must be a number, or infinite")
    return Prediction(
        instance_id=response.instance_id,
        ttft_s=response.ttft_s,
        e2e_s=response.e2e_s,
        tpot_s=response.tpot_s,
        preemptions=response.preemptions,
        snapshot_age_s=response.snapshot_age_s,
        load=load_from_proto(response.load),
        calibration_steps=response.calibration_steps,
        ttft_quantiles=tuple((q.level, q.seconds) for q in response.ttft_quantiles),
        e2e_quantiles=tuple((q.level, q.seconds) for q in response.e2e_quantiles),
        added_ttft_s=response.added_ttft_s if response.HasField("added_ttft_s") else None,
        added_e2e_s=response.added_e2e_s if response.HasField("added_e2e_s") else None,
        cached_tokens=response.cached_tokens,
        approximations=_approximations(response.approximations),
    )


def _quantiles_to_proto(
    quantiles: Iterable[tuple[float, float]],
) -> list[predictor_pb2.LatencyQuantile]:
    return [
        predictor_pb2.LatencyQuantile(level=level, seconds=seconds) for level, seconds in quantiles
    ]


def conversation_to_proto(conversation: Conversation, request: tagger_pb2.TagRequest) -> None:
    """Fill in the fields of `request` that tell of the conversation."""
    request.prompt = conversation.prompt
    request.characters = conversation.characters
    request.prompt_tokens = conversation.prompt_tokens
    request.system = conversation.system
    request.exchanges = conversation.exchanges
    request.max_tokens = conversation.max_tokens
    request.stops = conversation.stops
    request.min_tokens = conversation.min_tokens
    request.kind = kind_to_proto(conversation.kind)
    for exchange in conversation.earlier:
        request.earlier.add(
            prompt=exchange.prompt,
            answer=exchange.answer,
            answer_characters=exchange.answer_characters,
        )


def conversation_from_proto(request: tagger_pb2.TagRequest, most_characters: int) -> Conversation:
    """What `request` tells of the conversation, each text cut to `most_characters`."""
    return Conversation(
        prompt=head_and_tail(request.prompt, most_characters),
        characters=max(request.characters, len(request.prompt)),
        prompt_tokens=request.prompt_tokens,
        system=head_and_tail(request.system, most_characters),
        earlier=tuple(
            Exchange(
                head_and_tail(exchange.prompt, most_characters),
                head_and_tail(exchange.answer, most_characters),
                max(exchange.answer_characters, len(exchange.answer)),
            )
            for exchange in request.earlier[-MOST_EXCHANGES:]
        ),
        exchanges=max(request.exchanges, len(request.earlier)),
        max_tokens=request.max_tokens,
        stops=request.stops,
        min_tokens=request.min_tokens,
        kind=kind_from_proto(request.kind),
    )


def kind_to_proto(kind: Kind) -> tagger_pb2.RequestKind:
    """The number of a kind."""
    return _KIND_NUMBERS[kind]


def kind_from_proto(number: tagger_pb2.RequestKind) -> Kind:
    """The kind; plain for one that only a newer peer knows."""
    return _KINDS.get(number, PLAIN)


_KIND_NUMBERS: dict[Kind, tagger_pb2.RequestKind] = {
    "plain": tagger_pb2.REQUEST_KIND_PLAIN,
    "stop": tagger_pb2.REQUEST_KIND_STOP,
    "structured": tagger_pb2.REQUEST_KIND_STRUCTURED,
    "tools": tagger_pb2.REQUEST_KIND_TOOLS,
}
_KINDS = {number: kind for kind, number in _KIND_NUMBERS.items()}
