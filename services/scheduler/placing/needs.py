"""What a request needs of an engine, and what engines say that they cannot do."""

import re
from typing import Any, Literal

import orjson

from foretell.placement.needs import Need, Unfit
from foretell.services.scheduler.api.parsing import ParsedRequest
from foretell.services.scheduler.placing.placement import Placement

_KINDS: tuple[Literal["image", "audio", "video"], ...] = ("image", "audio", "video")
_TOO_LONG = frozenset(("input_text", "input_tokens", "context_length_exceeded"))
"""What vLLM names as the `param` of a prompt that is too long, and OpenAI's API as the `code`."""
_NO_MODEL = frozenset(("model", "model_not_found"))
_NO_INPUTS = re.compile(r"multimodal model", re.IGNORECASE)
"""vLLM names no `param` where its model takes text alone."""
_NUMBER = re.compile(r"[0-9]{1,18}")
_READ_BYTES = 2000
"""The part of what a refusal says that is read: the rest quotes the request."""
_MOST_BODY_BYTES = 1 << 16


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


def unfit_of(status: int, body: bytes, placement: Placement) -> Unfit:
    """Why an engine that answers so cannot serve a request that another may serve; "": it does not
    say, or the request is wrong everywhere.

    It goes by the status, the fields of the error, and the numbers and names in its text: sentences
    change.
    """
    if status not in (400, 404, 413, 422) or (error := _error_in(body)) is None:
        return ""
    said = str(error.get("message") or "")[:_READ_BYTES]
    named = {str(error.get("param")), str(error.get("code"))}
    if status == 404:  # a path that it does not have is no such error
        if any(each.endswith("response_id") for each in named) or "resp_" in said:
            return "response"
        return "model" if named & _NO_MODEL or placement.model in said else ""
    numbers = set(map(int, _NUMBER.findall(said)))
    if named & _TOO_LONG or placement.instance.lengths.get(placement.model) in numbers:
        return "length"
    given = [kind for kind in _KINDS if kind in placement.need.inputs]
    if given and _NO_INPUTS.search(said):
        return given[0]
    told = (kind for kind in given if 0 in numbers and (kind in named or kind in said))
    return next(told, "")


def _error_in(body: bytes) -> dict[str, Any] | None:
    """The error object of OpenAI's API in a body; older engines have nothing around it."""
    try:
        found = orjson.loads(body) if len(body) <= _MOST_BODY_BYTES else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict):
        return None
    error = found.get("error", found)
    return error if isinstance(error, dict) and "message" in error else None


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
