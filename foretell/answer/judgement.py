"""Whose fault an engine's answer is, and what follows: decided here, for relay and gateways.

An answer is judged by its status, by its body as far as that is seen, and by whether the client has
something of another engine's answer already.
"""

import re
from enum import Enum
from typing import Any, NamedTuple

import orjson

from foretell.openai.needs import KINDS
from foretell.placement.needs import ANY, Need, Unfit

_FAULTS = frozenset((401, 403, 405, 408))
"""Statuses below 500 that are not about the request: the engine refuses our key, or is none."""
_UNKNOWN_PATH = b'{"detail":"Not Found"}'
_TOO_LONG = frozenset(("input_text", "input_tokens", "context_length_exceeded"))
"""What vLLM names as the `param` of a prompt that is too long, and OpenAI's API as the `code`."""
_NO_MODEL = frozenset(("model", "model_not_found"))
_NO_INPUTS = re.compile(r"multimodal model", re.IGNORECASE)
"""vLLM names no `param` where its model takes text alone."""
_NUMBER = re.compile(r"[0-9]{1,18}")
_FIELDS = re.compile(rb"vllm_xargs|return_token_ids|extra|additional|unknown|unexpected|unrecog")
"""In what engines say that know fewer fields than vLLM."""
_READ_BYTES = 2000
"""The part of what a refusal says that is read: the rest quotes the request."""
_MOST_BODY_BYTES = 1 << 16


class Verdict(Enum):
    """What becomes of an engine's answer."""

    CLIENTS = "clients"
    """The client gets it: it is an answer, or an error of the client's own."""
    UNFIT = "unfit"
    """The engine is well, and another one may serve what it cannot."""
    REFUSED = "refused"
    """The client gets it only if all engines say so: this one may have lost its model, or have too
    much to do."""
    FAULT = "fault"
    """The engine has failed: the client does not get it."""


class Asked(NamedTuple):
    """What was asked of an engine, as far as its answer is judged by it."""

    need: Need = ANY
    model: str = ""
    longest: int | None = None
    """The engine's longest context for the model in tokens, where it is known."""
    generates: bool = True


ANYTHING = Asked()


class Judgement(NamedTuple):
    """What is thought of an answer, or of the loss of one."""

    verdict: Verdict
    reason: str
    unfit: Unfit = ""
    """What the engine cannot do, where it is unfit."""
    is_about_us: bool = False
    """What the engine says of it is not for the client: it speaks of our key or its address."""

    @property
    def may_be_repeated(self) -> bool:
        """Another engine may do better, as long as the client has seen nothing of this answer."""
        return self.verdict is not Verdict.CLIENTS

    @property
    def counts(self) -> bool:
        """It counts against the engine's health."""
        return self.verdict in (Verdict.REFUSED, Verdict.FAULT)


_ANSWER = Judgement(Verdict.CLIENTS, "answer")


def lost(reason: str) -> Judgement:
    """The answer did not come, or broke off, for `reason`."""
    return Judgement(Verdict.FAULT, reason)


def judge(
    status: int,
    body: bytes | None = None,
    *,
    asked: Asked = ANYTHING,
    as_event: bool = False,
    continued: bool = False,
) -> Judgement:
    """What to think of an answer with a status, and a body, where that is seen. `asked`: what was
    asked of the engine; `as_event`: an event of a stream says so, in place of its beginning;
    `continued`: the client has the beginning from another engine, and can get no other status."""
    if 200 <= status < 300:
        return _ANSWER
    reason = "error_event" if as_event else f"http_{status}"
    if not 400 <= status < 500 or status in _FAULTS or continued:
        return Judgement(Verdict.FAULT, reason, is_about_us=status in _FAULTS)
    if body is not None:
        if not asked.generates and body == _UNKNOWN_PATH:  # all engines with this model say so
            return Judgement(Verdict.CLIENTS, reason)
        if why := _unfit(status, body, asked):
            return Judgement(Verdict.UNFIT, "unfit", why)
    if status == 429 or (status == 404 and body is not None):
        return Judgement(Verdict.REFUSED, reason)
    return Judgement(Verdict.CLIENTS, reason)


def may_refuse_fields(status: int, body: bytes) -> bool:
    """Whether this may be about the fields that are added for vLLM, as engines refuse them that
    allow no others than they know."""
    return status in (400, 422) and _FIELDS.search(body[:_MOST_BODY_BYTES]) is not None


def _unfit(status: int, body: bytes, asked: Asked) -> Unfit:
    """Why an engine that answers so cannot serve a request that another may serve; "": it does not
    say, or the request is wrong everywhere. It goes by the status, the fields of the error, and the
    numbers and names in its text: sentences change."""
    if status not in (400, 404, 413, 422) or (error := _error_in(body)) is None:
        return ""
    said = str(error.get("message") or "")[:_READ_BYTES]
    named = {str(error.get("param")), str(error.get("code"))}
    if status == 404:  # a path that it does not have is no such error
        if any(each.endswith("response_id") for each in named) or "resp_" in said:
            return "response"
        return "model" if named & _NO_MODEL or (asked.model and asked.model in said) else ""
    numbers = set(map(int, _NUMBER.findall(said)))
    if named & _TOO_LONG or asked.longest in numbers:
        return "length"
    given = [kind for kind in KINDS if kind in asked.need.inputs]
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
