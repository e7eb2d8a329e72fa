"""Conversion between requests, with their predicted lengths, and `proto/foretell/v1`."""

from itertools import pairwise
from math import inf, isfinite

from foretell.length.prefix import MOST_CHUNKS
from foretell.model import LengthEstimate, RequestSpec, Slo, Turn
from foretell.v1 import predictor_pb2, tagger_pb2
from foretell.wire.common import WireError


def length_to_proto(length: LengthEstimate) -> tagger_pb2.LengthEstimate:
    return tagger_pb2.LengthEstimate(
        expected_tokens=length.expected_tokens,
        quantiles=[tagger_pb2.Quantile(level=q, tokens=tokens) for q, tokens in length.quantiles],
        source=length.source,
    )


def length_from_proto(length: tagger_pb2.LengthEstimate) -> LengthEstimate:
    """Raises `WireError` for invalid lengths or levels."""
    tokens = [length.expected_tokens, *(q.tokens for q in length.quantiles)]
    if not all(map(isfinite, tokens)) or min(tokens) < 0.0:
        raise WireError("length: tokens must be finite and not negative")
    levels = [q.level for q in length.quantiles]
    if not all(low < high for low, high in pairwise((0.0, *levels, 1.0))):
        raise WireError("length: levels must ascend within (0, 1)")
    return LengthEstimate(
        expected_tokens=length.expected_tokens,
        quantiles=tuple((q.level, q.tokens) for q in length.quantiles),
        source=length.source,
    )


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
        whole_prompt=request.turn.prompt,
        prompt_before=request.turn.before,
        answered_tokens=request.turn.answered_tokens,
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
    if not 0 <= request.answered_tokens < inf:
        raise WireError("request: answered_tokens must be finite and not negative")
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
        turn=Turn(request.whole_prompt, request.prompt_before, request.answered_tokens),
        slo=Slo(*(_target(x) for x in (request.ttft_target_s, request.tpot_target_s))),
        x_request_id=request.x_request_id,
    )


def ended_to_proto(
    request: RequestSpec, *, answered: bool, output_tokens: int = 0
) -> predictor_pb2.RequestEnded:
    return predictor_pb2.RequestEnded(
        request_id=request.request_id,
        answered=answered,
        x_request_id=request.x_request_id,
        output_tokens=output_tokens // request.sequences,
    )


def _target(seconds: float) -> float:
    if not 0.0 <= seconds < inf:
        raise WireError("request: targets must be finite and not negative")
    return seconds or inf
