"""Latency targets: what requests state in their headers, and whether answers met them."""

import re
from collections.abc import Mapping
from math import inf
from typing import Literal, NamedTuple

from foretell.model import NO_SLO, Slo
from foretell.openai.errors import ApiError, invalid, retry_after
from foretell.policy.admission import Late, Unattainable

TTFT_HEADER = "x-foretell-ttft-target-ms"
TPOT_HEADER = "x-foretell-tpot-target-ms"
LATE_HEADER = "x-foretell-when-late"
_TTFT_HEADERS = (TTFT_HEADER, "x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
_TPOT_HEADERS = (TPOT_HEADER, "x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
"""Foretell's name, then llm-d's new and old ones; the first that a request has counts."""
_HEADERS = frozenset((*_TTFT_HEADERS, *_TPOT_HEADERS, LATE_HEADER))
_MILLISECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_LATE: dict[str, Late] = {"serve": "serve", "reject": "reject"}

Outcome = Literal["met", "missed", "rejected"]


class Terms(NamedTuple):
    """The targets of one request, and what to do if they cannot be met."""

    slo: Slo = NO_SLO
    """The targets, counted from the request's arrival."""
    late: Late = "serve"
    """Whether a request that would be late is served all the same or rejected at once."""
    arrived_unix_s: float = 0.0

    def outcome(
        self, first_token_unix_s: float, ended_unix_s: float, tokens: float
    ) -> Outcome | None:
        """Whether an answer met its targets; None if there were none or too little is known.
        `tokens` is the mean number of output tokens in a sequence. Times and tokens are 0 if they
        are not known."""
        slo = self.slo
        if not slo.given or not first_token_unix_s or (slo.tpot_s < inf and not tokens):
            return None
        ttft_s = first_token_unix_s - self.arrived_unix_s
        tpot_s = max(0.0, ended_unix_s - first_token_unix_s) / max(1.0, tokens - 1.0)
        return "met" if slo.met(ttft_s, tpot_s) else "missed"


NO_TERMS = Terms()
"""The terms of a request without targets, where the replica has none either."""


def default_terms(ttft_target_ms: float, tpot_target_ms: float, late: Late) -> Terms:
    """The terms of requests that state none of their own; a target of 0 ms is no target."""
    return Terms(Slo(_seconds(ttft_target_ms), _seconds(tpot_target_ms)), late)


def terms_of(headers: Mapping[str, str], default: Terms, now_unix_s: float) -> Terms:
    """The terms of a request that arrives now; raises `ApiError` that names the wrong header."""
    if _HEADERS.isdisjoint(headers):  # the usual case
        return Terms(default.slo, default.late, now_unix_s)
    slo = Slo(
        _target_s(headers, _TTFT_HEADERS, default.slo.ttft_s),
        _target_s(headers, _TPOT_HEADERS, default.slo.tpot_s),
    )
    late = headers.get(LATE_HEADER, default.late)
    if late not in _LATE:
        raise invalid(f"'{LATE_HEADER}' must be serve or reject", LATE_HEADER, "invalid_value")
    return Terms(slo, _LATE[late], now_unix_s)


def _target_s(headers: Mapping[str, str], names: tuple[str, ...], default_s: float) -> float:
    name = next((name for name in names if name in headers), None)
    if name is None:
        return default_s
    text = headers[name]
    if not _MILLISECONDS.fullmatch(text):
        raise invalid(f"'{name}' must be a number of milliseconds; 0: none", name, "invalid_value")
    return _seconds(float(text))


def _seconds(target_ms: float) -> float:
    return target_ms / 1000 if target_ms > 0 else inf


class SloUnattainable(ApiError):
    """An error 429: the request is fine, but no instance could answer it in time."""

    def __init__(self, terms: Terms, why: Unattainable) -> None:
        self.ttft_s = terms.slo.ttft_s - why.target_s + why.ttft_s
        """The best predicted TTFT, counted from the request's arrival."""
        super().__init__(
            429,
            f"no instance can begin to answer in time: a TTFT of {self.ttft_s * 1000:.0f} ms is "
            f"predicted at best, the target is {terms.slo.ttft_s * 1000:.0f} ms",
            code="slo_unattainable",
            headers=retry_after(why.wait_s),
        )
