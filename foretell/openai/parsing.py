"""Parses a request body for placement, or raises an error that names the wrong field.

Only what placement reads is checked here. The engine checks everything else, and its answer is
relayed.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isinf
from typing import Any, NamedTuple, NoReturn

import orjson
from pydantic import ValidationError

from foretell.cosched.deadlines import CLASS_FIELD, TPOT_FIELD, TTFT_FIELD, JobClass, job_of
from foretell.length.conversation import Kind
from foretell.model import OFFLINE_PRIORITY, Slo
from foretell.openai.errors import ApiError, invalid
from foretell.openai.forms import form_fields
from foretell.openai.output import (
    HINT_FIELD,
    NO_OUTPUT,
    dynamo_priority,
    output_terms,
)
from foretell.openai.shortened import LARGE_BYTES, MOST_TEXT, Short, too_much
from foretell.openai.slo import NO_TERMS, Terms
from foretell.openai.surface import (
    MAX_SEQUENCES,
    Endpoint,
    Message,
    Prompts,
    content_text,
    too_many_sequences,
)

_MOST_SLOW_WORK = 2_000_000
"""The most `work_of` a long body that orjson refuses and the slower `json` parses."""
_FIRST_PRIORITY, _LAST_PRIORITY = -(2**31), 2**31 - 1
_CODES = {
    "missing": "missing_required_parameter",
    "too_long": "array_too_long",
    **dict.fromkeys(("greater_than_equal", "less_than_equal", "less_than"), "invalid_value"),
}
"""The API's error codes by pydantic's error types; others are `invalid_type`."""
_ONLINE, _OFFLINE = JobClass.ONLINE, JobClass.OFFLINE
JSON = "application/json"
PRIORITY_HEADER = "x-vllm-priority"
OUTPUT_IDS_FIELD = "foretell_output_ids"
"""Key of `vllm_xargs` that tells the engine the output tokens that the client already has."""
OUTPUT_LENGTHS_FIELD = "foretell_output_lengths"
"""Key of `vllm_xargs` that says how many of these tokens belong to each choice, if there are
several: vLLM accepts no lists of lists."""
_OURS_ALONE = (HINT_FIELD, OUTPUT_IDS_FIELD, OUTPUT_LENGTHS_FIELD)
"""Keys of `vllm_xargs` that are removed from a client's body."""


class ApiRequest(NamedTuple):
    """A valid request and the facts about it that placement needs. It is made once, by `parse`."""

    max_tokens: int
    """This one and the next five are as in `OutputTerms`."""
    min_tokens: int
    hint_tokens: int
    ignore_eos: bool
    unending: bool
    kind: Kind
    endpoint: Endpoint
    body: dict[str, Any]
    raw: bytes
    """The body as it came."""
    model: str
    stream: bool
    sequences: int
    priority: int
    given_priority: int
    """The one that engines read in the body; only those with priorities are told `priority`."""
    job_class: JobClass
    """Offline if it has the last priority or declares itself offline in its `vllm_xargs`."""
    text: str
    """The prompt as text; empty when it came as token ids."""
    characters: int
    """Length of the prompt, or of the longest one if there are several."""
    messages: list[Message]
    """The conversation, in the form of chat completions; empty where there is none."""
    token_ids: int
    """Length of a prompt that was given as token ids; 0 for text."""
    tenant: str = ""
    """The tenant whose API key came with the request; "" where no key is needed."""
    terms: Terms = NO_TERMS
    request_id: str = ""
    """The id that its client sees."""
    content_type: str = JSON
    among: frozenset[str] | None = None
    """Names of the only instances that may answer; None: any."""


def _targets(slo: Slo) -> dict[str, float]:
    given = {TTFT_FIELD: slo.ttft_s, TPOT_FIELD: slo.tpot_s}
    return {name: round(1000.0 * value, 3) for name, value in given.items() if value < inf}


def wants_usage(body: dict[str, Any]) -> bool:
    """Whether a stream that answers this body ends with token counts."""
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def parse(
    endpoint: Endpoint,
    raw: bytes,
    body: dict[str, Any] | None = None,
    *,
    content_type: str = JSON,
    request_id: str = "",
    tenant: str = "",
    terms: Terms = NO_TERMS,
    only: Callable[[], str] = str,
    priority: str = "",
    least_priority: int | None = None,
    among: frozenset[str] | None = None,
) -> ApiRequest:
    """Validate a request body; raises `ApiError`. A form is passed on unchanged. `body` is the
    result of `values_of` for a long body. `only` returns the model to use if the body names none,
    or "" if there are several. `priority` is the header `X-Vllm-Priority`; `least_priority` is the
    smallest number that the tenant may have as priority."""
    if endpoint.is_form:
        fields = form_fields(content_type, raw)
        body = {name: fields.get(name) for name in ("model", "stream")}
    elif body is None:
        body = _json_object(raw)
    try:
        fields = endpoint.read(body)
    except ValidationError as error:
        raise _refusal(error) from error
    model = _model(body, only)
    n, output = 1, NO_OUTPUT
    if endpoint.generates:
        n, output = fields.n or 1, output_terms(body, fields.limit, endpoint)
    messages = endpoint.messages(body) if endpoint.messages else []
    prompts: Prompts = [""]
    if messages:
        prompts = ["\n".join([content_text(each.get("content")) for each in messages])]
    elif endpoint.prompts:
        prompts = endpoint.prompts(body)
    if len(prompts) * n > MAX_SEQUENCES:
        raise too_many_sequences("prompt" if n == 1 else "n")
    longest = prompts[0] if len(prompts) == 1 else max(prompts, key=len)
    wanted, given = _priorities(body, fields.priority, priority, least_priority)
    return ApiRequest(
        *output,
        endpoint=endpoint,
        body=body,
        raw=raw,
        model=model,
        stream=(endpoint.generates or endpoint.is_form) and bool(fields.stream),
        sequences=len(prompts) * n,
        priority=wanted,
        given_priority=given,
        job_class=_OFFLINE if wanted == OFFLINE_PRIORITY else _ONLINE,
        # Lone surrogates are legal JSON but not legal UTF-8: they are replaced for placement.
        text=without_surrogates(longest[:MOST_TEXT]) if isinstance(longest, str) else "",
        characters=len(longest) if isinstance(longest, str) else 0,
        messages=messages,
        token_ids=0 if isinstance(longest, str) else len(longest),
        tenant=tenant,
        terms=terms,
        request_id=request_id,
        content_type=content_type,
        among=among,
    )


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # Between field names, pydantic lists the types that it tried for a value.
    place = [each for each in first["loc"] if isinstance(each, int) or each.isidentifier()]
    param = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place)[1:]
    return invalid(f"'{param}': {first['msg']}", param, _CODES.get(first["type"], "invalid_type"))


def _model(body: dict[str, Any], only: Callable[[], str]) -> str:
    model = body.get("model") or only() or body.get("model")
    if model is None:
        raise invalid("you must provide a model parameter", "model", "missing_required_parameter")
    if not isinstance(model, str) or not model:
        raise invalid("'model' must be a non-empty string", "model", "invalid_type")
    return model


def _priorities(
    body: dict[str, Any], stated: int | None, header: str, least: int | None
) -> tuple[int, int]:
    """The request's priority, and the one that an engine reads in it.

    Requests that declare themselves offline get the last priority. Otherwise the header overrides
    the body's `priority`, as in vLLM, and that overrides the hint of Dynamo's clients. A header
    that is no number is ignored.
    """
    wanted = given = stated or 0
    if _says_offline(body):
        wanted = given = OFFLINE_PRIORITY
    elif header:
        with suppress(ValueError):
            wanted = given = max(_FIRST_PRIORITY, min(_LAST_PRIORITY, int(header)))
    elif stated is None and "nvext" in body:
        wanted = dynamo_priority(body)
    if least is not None:
        wanted = given = max(wanted, least)
    return wanted, given


def _says_offline(body: dict[str, Any]) -> bool:
    xargs = body.get("vllm_xargs")  # not validated if the endpoint lacks the field
    return isinstance(xargs, dict) and job_of(xargs).job_class is _OFFLINE


@dataclass(frozen=True, slots=True)
class Spliced:
    """A long body in parts. Some are views of the client's body, which is not copied."""

    parts: tuple[bytes | memoryview, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))


def for_engine(
    request: ApiRequest,
    request_id: str,
    predicted_tokens: float,
    *,
    with_ids: bool = False,
    output_ids: Sequence[Sequence[int]] = (),
    response_id: str = "",
    as_it_is: bool = False,
) -> bytes | Spliced:
    """The body that the engine gets: the client's with Foretell's fields added in `vllm_xargs`.

    It is unchanged if nothing is generated, and with `as_it_is`, for engines that do not know these
    fields. `with_ids`: ask for token ids in the answer; `output_ids`: the ids that the client
    already has, for each choice; `response_id`: the id that the response gets, without quotes or
    backslashes.

    Raises `ApiError` if `vllm_xargs` is nested too deeply to be serialized.
    """
    if as_it_is or not request.endpoint.generates:
        return request.raw
    ours: dict[str, Any] = {
        "foretell_id": request_id,
        "foretell_predicted_tokens": round(predicted_tokens, 1),
    }
    if request.job_class is _OFFLINE:
        ours[CLASS_FIELD] = _OFFLINE.value
    elif request.terms.slo.given:
        ours.update(_targets(request.terms.slo))
    if any(output_ids):
        ours[OUTPUT_IDS_FIELD] = [each for ids in output_ids for each in ids]
        if len(output_ids) > 1:
            ours[OUTPUT_LENGTHS_FIELD] = list(map(len, output_ids))
    # Of duplicate fields, the last one counts in every engine written in Python.
    rest = b',"return_token_ids":true' if with_ids else b""
    if response_id:
        rest += b',"request_id":"%b"' % response_id.encode()
    theirs = request.body.get("vllm_xargs")
    raw = request.raw
    head = memoryview(raw)[: raw.rindex(b"}")]  # bytes would be copied once more
    parts = (head, b',"vllm_xargs":', _merged(theirs or {}, ours), rest, b"}")
    if len(raw) > LARGE_BYTES:
        return Spliced((head, b"".join(parts[1:])))
    return b"".join(parts)


def _merged(theirs: dict[str, Any], ours: dict[str, Any]) -> bytes:
    if not theirs:
        return orjson.dumps(ours)
    kept = {name: value for name, value in theirs.items() if name not in _OURS_ALONE}
    with suppress(TypeError):  # for lone surrogates and large numbers
        return orjson.dumps(kept | ours)
    try:
        return json.dumps(kept | ours, separators=(",", ":")).encode()
    except RecursionError as error:  # a depth that the parser just managed may be too much here
        raise invalid(
            "the body of your request is nested too deeply", code="json_invalid"
        ) from error


def values_of(short: Short) -> dict[str, Any]:
    """Parse a shortened body; raises `ApiError`."""
    return _json_object(*short)


def _json_object(text: bytes, work: int = 0) -> dict[str, Any]:
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        if work > _MOST_SLOW_WORK:
            raise too_much() from None
        body = _parsed_slowly(text)
    if not isinstance(body, dict):
        raise invalid("the body of your request must be a JSON object", code="json_invalid")
    return body


def _parsed_slowly(raw: bytes) -> object:
    """Parse what orjson refuses and other parsers accept: lone surrogates, deep nesting."""
    if not json.detect_encoding(raw).startswith("utf-8"):  # no fields could be appended
        raise invalid("the body of your request must be in UTF-8", code="json_invalid")
    try:
        return json.loads(raw, parse_constant=_reject_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise invalid("the body of your request is not valid JSON", code="json_invalid") from error


def without_surrogates(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if isinf(value):  # an overflow such as 1e999, which would reach the engine as Infinity
        raise ValueError(f"{text} is too large")
    return value
