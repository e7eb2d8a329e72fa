"""What a request needs of an engine, and what engines say that they cannot do."""

import re
from typing import Literal

from foretell.placement.needs import Need, Unfit
from foretell.services.scheduler.http.parsing import ParsedRequest

_KINDS: tuple[Literal["image", "audio", "video"], ...] = ("image", "audio", "video")
_REFUSALS: tuple[tuple[Unfit, re.Pattern[bytes]], ...] = (
    (
        "length",
        re.compile(
            rb"maximum (context|model) length|max_model_len|max_total_tokens"
            rb"|cannot be greater than max_|longer than the maximum",
            re.IGNORECASE,
        ),
    ),
    ("response", re.compile(rb"response with id .{1,300} not found", re.IGNORECASE)),
    ("model", re.compile(rb"the model .{1,300} does not exist", re.IGNORECASE)),
    *(
        (
            kind,
            re.compile(
                rb"at most 0 %b\(?s?\)?|%b(_url)? (inputs? )?(is|are) not supported"
                rb"|not support (any )?%b" % ((kind.encode(),) * 3),
                re.IGNORECASE,
            ),
        )
        for kind in _KINDS
    ),
)
"""What vLLM says, by what it cannot do."""
_NO_INPUTS = re.compile(rb"not (a multimodal|multimodal)|multimodal.{0,40}not", re.IGNORECASE)
_READ_BYTES = 2000
"""The part of a refusal that is read: the rest quotes the request."""


def need_of(request: ParsedRequest, prompt_tokens: int, keeper: str = "") -> Need:
    """What an engine needs to serve the request, whose prompt is counted or estimated.

    `keeper`: the instance that keeps what it refers to.
    """
    truncated = request.body.get("truncate_prompt_tokens")
    if type(truncated) is int:
        prompt_tokens = min(prompt_tokens, max(0, truncated))  # -1: to what fits
    generated = 1 if request.endpoint.generates else 0
    longest = max(generated, request.max_tokens) if request.endpoint.generates else 0
    return Need(
        tokens=prompt_tokens + longest,
        least_tokens=prompt_tokens + generated,
        inputs=_inputs(request),
        keeper=keeper,
    )


def unfit_of(status: int, body: bytes, need: Need) -> Unfit:
    """Why an engine that answers so cannot serve a request that another may serve; "": it does not
    say, or the request is wrong everywhere."""
    if status not in (400, 404, 413, 422):
        return ""
    said = body[:_READ_BYTES]
    for why, pattern in _REFUSALS:
        if pattern.search(said) and (why in ("response", "model")) == (status == 404):
            return why
    if need.inputs and _NO_INPUTS.search(said):
        return next(kind for kind in _KINDS if kind in need.inputs)
    return ""


def _inputs(request: ParsedRequest) -> frozenset[str]:
    """Kinds of inputs beside text in the messages."""
    kinds = set[str]()
    for message in request.messages:
        content = message.get("content")
        if isinstance(content, list):
            kinds |= {str(part.get("type")) for part in content if isinstance(part, dict)}
    if not kinds:
        return frozenset()
    return frozenset(kind for kind in _KINDS if any(kind in each for each in kinds))
