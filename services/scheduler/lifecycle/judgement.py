"""Whose fault an engine's answer is, and what follows: decided here, for relay and gateways.

An answer is judged by its status, by its body as far as that is seen, and by whether the client has
something of another engine's answer already.
"""

import re
from enum import Enum
from typing import Literal, NamedTuple

from foretell.placement.needs import ANY, Need, Unfit

_KINDS: tuple[Literal["image", "audio", "video"], ...] = ("image", "audio", "video")
_FAULTS = frozenset((401, 403, 405, 408))
"""Statuses below 500 that are not about the request: the engine refuses our key, or is none."""
_UNKNOWN_PATH = b'{"detail":"Not Found"}'
_UNFIT: tuple[tuple[Unfit, re.Pattern[bytes]], ...] = (
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


class Judgement(NamedTuple):
    """What is thought of an answer, or of the loss of one."""

    verdict: Verdict
    reason: str
    """A label for metrics."""
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


def lost(reason: str) -> Judgement:
    """The answer did not come, or broke off, for `reason`."""
    return Judgement(Verdict.FAULT, reason)


def judge(
    status: int,
    body: bytes | None = None,
    *,
    need: Need = ANY,
    generates: bool = True,
    as_event: bool = False,
    continued: bool = False,
) -> Judgement:
    """What to think of an answer with a status, and a body, where that is seen.

    `need`: what its request needs of an engine; `generates`: it generates tokens; `as_event`: an
    event of a stream says so, in place of its beginning; `continued`: the client has the beginning
    from another engine, and can get no other status.
    """
    reason = "error_event" if as_event else f"http_{status}"
    is_answer, is_refusal = 200 <= status < 300, 400 <= status < 500
    if not (is_answer or is_refusal) or status in _FAULTS or (continued and is_refusal):
        return Judgement(Verdict.FAULT, reason, is_about_us=status in _FAULTS)
    if is_answer:
        return Judgement(Verdict.CLIENTS, reason)
    if body is not None:
        if not generates and body == _UNKNOWN_PATH:  # all engines with this model say so
            return Judgement(Verdict.CLIENTS, reason)
        if why := _unfit(status, body, need):
            return Judgement(Verdict.UNFIT, "unfit", why)
    if status == 429 or (status == 404 and body is not None):
        return Judgement(Verdict.REFUSED, reason)
    return Judgement(Verdict.CLIENTS, reason)


def _unfit(status: int, body: bytes, need: Need) -> Unfit:
    """Why an engine that answers so cannot serve a request that another may serve; "": it does not
    say, or the request is wrong everywhere."""
    if status not in (400, 404, 413, 422):
        return ""
    said = body[:_READ_BYTES]
    for why, pattern in _UNFIT:
        if pattern.search(said) and (why in ("response", "model")) == (status == 404):
            return why
    if need.inputs and _NO_INPUTS.search(said):
        return next(kind for kind in _KINDS if kind in need.inputs)
    return ""
