"""Whose fault an engine's error is, and what follows from it, for relay and gateways.

An answer is judged by its status, by its body if that is visible, and by whether the client already
has a part of another engine's answer.
"""

import re
from enum import Enum
from typing import Any, NamedTuple

import orjson

from foretell.openai.needs import KINDS
from foretell.placement.needs import ANY, Need, Unfit

_FAULTS = frozenset((401, 403, 405, 408))
"""Statuses below 500 that are not about the request: wrong key for the engine, or no engine."""
_UNKNOWN_PATH = b'{"detail":"Not Found"}'
_TOO_LONG = frozenset(("input_text", "input_tokens", "context_length_exceeded"))
"""The `param` in vLLM and the `code` in OpenAI's API of the error for a prompt that is too long."""
_NO_MODEL = frozenset(("model", "model_not_found"))
_NO_INPUTS = re.compile(r"multimodal model", re.IGNORECASE)
"""In vLLM's message if its model takes text only; such an error has no `param`."""
_NUMBER = re.compile(r"[0-9]{1,18}")
_FIELDS = re.compile(rb"vllm_xargs|return_token_ids|extra|additional|unknown|unexpected|unrecog")
"""In messages of engines that know fewer fields than vLLM."""
_READ_BYTES = 2000
"""How much of an error's message is read; the rest quotes the request."""
_MOST_BODY_BYTES = 1 << 16


class Verdict(Enum):
    """What becomes of an engine's answer."""

    CLIENTS = "clients"
    """The client gets it: it is an answer, or an error of the client's own."""
    UNFIT = "unfit"
    """The engine is healthy, but cannot serve this request; another one may."""
    REFUSED = "refused"
    """The client gets it only if all engines say so: this one may have lost its model, or be
    overloaded."""
    FAULT = "fault"
    """The engine has failed; the client does not get it."""


class Asked(NamedTuple):
    """What the judgement of an answer needs to know of its request."""

    need: Need = ANY
    model: str = ""
    longest: int | None = None
    """The engine's longest context for the model in tokens, where it is known."""
    generates: bool = True


ANYTHING = Asked()


class AnswerJudgement(NamedTuple):
    """The judgement of an answer, or of the loss of one."""

    verdict: Verdict
    reason: str
    unfit: Unfit = ""
    """What the engine cannot do, if it is unfit."""
    is_about_us: bool = False
    """The client must not see the message, which is about the scheduler's key or the address."""

    @property
    def may_be_repeated(self) -> bool:
        """Whether to retry on another engine, if the client has seen nothing of this answer."""
        return self.verdict is not Verdict.CLIENTS

    @property
    def counts(self) -> bool:
        """Whether it counts against the engine's health."""
        return self.verdict in (Verdict.REFUSED, Verdict.FAULT)


_ANSWER = AnswerJudgement(Verdict.CLIENTS, "answer")


def lost(reason: str) -> AnswerJudgement:
    """Return the judgement of an answer that did not come, or broke off, for `reason`."""
    return AnswerJudgement(Verdict.FAULT, reason)


def judge(
    status: int,
    body: bytes | None = None,
    *,
    asked: Asked = ANYTHING,
    as_event: bool = False,
    continued: bool = False,
) -> AnswerJudgement:
    """Judge an answer by its status, and by its body unless that is not visible (None). `asked`:
    what was asked of the engine. `as_event`: the status is from an error event in a stream.
    `continued`: the client has the beginning from another engine, and can get no other status."""
    if 200 <= status < 300:
        return _ANSWER
    reason = "error_event" if as_event else f"http_{status}"
    if not 400 <= status < 500 or status in _FAULTS or continued:
        return AnswerJudgement(Verdict.FAULT, reason, is_about_us=status in _FAULTS)
    if body is not None:
        if not asked.generates and body == _UNKNOWN_PATH:  # all engines with this model say so
            return AnswerJudgement(Verdict.CLIENTS, reason)
        if why := _unfit(status, body, asked):
            return AnswerJudgement(Verdict.UNFIT, "unfit", why)
    if status == 429 or (status == 404 and body is not None):
        return AnswerJudgement(Verdict.REFUSED, reason)
    return AnswerJudgement(Verdict.CLIENTS, reason)


def may_refuse_fields(status: int, body: bytes) -> bool:
    """Whether the error may be about the fields that are added for vLLM: some engines refuse fields
    that they do not know."""
    return status in (400, 422) and _FIELDS.search(body[:_MOST_BODY_BYTES]) is not None


def _unfit(status: int, body: bytes, asked: Asked) -> Unfit:
    """Why the engine cannot serve a request that another may serve; "" if it does not say, or the
    request is wrong everywhere. That is read from the status, the error's fields, and the numbers
    and names in its message, because the wording changes."""
    if status not in (400, 404, 413, 422) or (error := _error_in(body)) is None:
        return ""
    said = str(error.get("message") or "")[:_READ_BYTES]
    named = {str(error.get("param")), str(error.get("code"))}
    if status == 404:  # not for an unknown path, whose body has no error object
        if any(each.endswith("response_id") for each in named) or "resp_" in said:
            return "response"
        return "model" if named & _NO_MODEL or (asked.model and asked.model in said) else ""
    numbers = set(map(int, _NUMBER.findall(said)))
    if named & _TOO_LONG or asked.longest in numbers:
        return "length"
    given = [kind for kind in KINDS if kind in asked.need.inputs]
    if given and _NO_INPUTS.search(said):
        return given[0]
    refused = (kind for kind in given if 0 in numbers and (kind in named or kind in said))
    return next(refused, "")


def _error_in(body: bytes) -> dict[str, Any] | None:
    """The error object of OpenAI's API in a body; older engines do not wrap it in `error`."""
    try:
        found = orjson.loads(body) if len(body) <= _MOST_BODY_BYTES else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict):
        return None
    error = found.get("error", found)
    return error if isinstance(error, dict) and "message" in error else None
