"""What a request's body says of the length of its answer, by vLLM's rules.

Fields that only the engine judges are read as if they were absent where they are wrong.
"""

from typing import Any, NamedTuple

from foretell.length.conversation import PLAIN, Kind
from foretell.services.scheduler.api.errors import invalid
from foretell.services.scheduler.api.forms import integer
from foretell.services.scheduler.api.surface import Endpoint

HINT_FIELD = "foretell_output_tokens"
"""Key of `vllm_xargs` in which a client may say how long it expects the answer to be."""


class OutputTerms(NamedTuple):
    """Bounds of one answer's length in tokens, and what kind of answer it will be."""

    max_tokens: int
    """0 where the client named no limit and the endpoint has no default."""
    min_tokens: int
    """At most `max_tokens`; 0: no bound."""
    hint_tokens: int
    """The length, where it is certain; otherwise what the client expects; 0: it does not say."""
    ignore_eos: bool
    """The model does not end the answer, whose length says nothing of others'."""
    unending: bool
    """Nothing but the engine's `max_model_len` ends the answer."""
    kind: Kind


NO_OUTPUT = OutputTerms(1, 1, 1, ignore_eos=True, unending=False, kind=PLAIN)
"""The terms of requests that generate nothing: their prompts are processed, as for one token."""


def output_terms(body: dict[str, Any], endpoint: Endpoint) -> OutputTerms:
    """What is known of each sequence that is generated; raises `ApiError`."""
    if not endpoint.generates:
        return NO_OUTPUT
    max_tokens = _max_tokens(body, endpoint)
    min_tokens = _min_tokens(body, max_tokens)
    ignore_eos = body.get("ignore_eos") is True
    hint_tokens = _hint(body)
    goes_on = ignore_eos and not _stops(body)
    if max_tokens and (max(1, min_tokens) == max_tokens or goes_on):
        hint_tokens = max_tokens
    unending, kind = goes_on and not max_tokens, _kind(body, endpoint)
    return OutputTerms(max_tokens, min_tokens, hint_tokens, ignore_eos, unending, kind)


def _max_tokens(body: dict[str, Any], endpoint: Endpoint) -> int:
    for name in endpoint.limits:
        if body.get(name) is not None:
            # Whether an answer may be empty, as beside `echo`, is the engine's to judge.
            return max(1, integer(body, name, 0, least=0, most=2**31 - 1))
    return endpoint.default_max_tokens


def _min_tokens(body: dict[str, Any], max_tokens: int) -> int:
    value = body.get("min_tokens")
    if type(value) is not int or value < 0:
        return 0
    return min(value, max_tokens or 2**31 - 1)


def _hint(body: dict[str, Any]) -> int:
    xargs = body.get("vllm_xargs")
    if xargs is None:
        return 0
    if not isinstance(xargs, dict):
        raise invalid("'vllm_xargs' must be an object", "vllm_xargs", "invalid_type")
    if HINT_FIELD not in xargs:
        return 0
    hint = xargs[HINT_FIELD]
    if type(hint) is not int or not 1 <= hint < 2**31:
        param = f"vllm_xargs.{HINT_FIELD}"
        raise invalid(f"'{param}' must be a positive integer", param, "invalid_type")
    return hint


def _stops(body: dict[str, Any]) -> bool:
    """Something else than the end of text may end the answer."""
    return any(body.get(name) for name in ("stop", "stop_token_ids", "repetition_detection"))


def _kind(body: dict[str, Any], endpoint: Endpoint) -> Kind:
    if endpoint.messages and body.get("tools") and body.get("tool_choice") != "none":
        return "tools"
    if _structured(body):
        return "structured"
    return "stop" if body.get("stop") or body.get("stop_token_ids") else PLAIN


def _structured(body: dict[str, Any]) -> bool:
    """The answer must follow a schema, a grammar or the like. Fields whose names begin with
    `guided_` are those of older engines."""
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") != "text":
        return True
    if body.get("structured_outputs"):
        return True
    return any(value for name, value in body.items() if name.startswith("guided_"))
