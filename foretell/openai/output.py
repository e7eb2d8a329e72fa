"""What a request's body says about the length of its answer, by vLLM's rules.

Invalid values of fields that only the engine checks are read as if the fields were absent.
"""

from typing import Any, NamedTuple

from foretell.length.conversation import PLAIN, Kind
from foretell.openai.surface import Endpoint

HINT_FIELD = "foretell_output_tokens"
"""Key of `vllm_xargs` in which a client may say how long it expects the answer to be."""


class OutputTerms(NamedTuple):
    """Bounds of one answer's length in tokens, and what kind of answer it will be."""

    max_tokens: int
    """0 where the client named no limit and the endpoint has no default."""
    min_tokens: int
    """At most `max_tokens`; 0: no bound."""
    hint_tokens: int
    """The exact length if it is certain, otherwise the client's hint; 0 if there is none."""
    ignore_eos: bool
    """The model cannot end the answer, so its length says nothing about other answers."""
    unending: bool
    """Only the engine's `max_model_len` ends the answer."""
    kind: Kind


NO_OUTPUT = OutputTerms(1, 1, 1, ignore_eos=True, unending=False, kind=PLAIN)
"""The terms of requests that generate nothing: their cost is a prefill, like for one token."""


def output_terms(body: dict[str, Any], limit: int | None, endpoint: Endpoint) -> OutputTerms:
    """The terms of each generated sequence. `limit`: the client's limit in tokens; None: none."""
    # The engine checks whether an answer may be empty, as with `echo`.
    max_tokens = endpoint.default_max_tokens if limit is None else max(1, limit)
    least = body.get("min_tokens")
    min_tokens = least if type(least) is int and least > 0 else 0
    if max_tokens and min_tokens > max_tokens:
        min_tokens = max_tokens
    ignore_eos = body.get("ignore_eos") is True
    xargs = body.get("vllm_xargs")
    hint_tokens = xargs.get(HINT_FIELD, 0) if xargs else 0
    if not hint_tokens and "nvext" in body:
        hint_tokens = max(0, _dynamo_hint(body, "osl"))
    goes_on = ignore_eos and not _stops(body)
    if max_tokens and (max_tokens in (1, min_tokens) or goes_on):
        hint_tokens = max_tokens
    unending, kind = goes_on and not max_tokens, _kind(body, endpoint)
    return OutputTerms(max_tokens, min_tokens, hint_tokens, ignore_eos, unending, kind)


def dynamo_priority(body: dict[str, Any]) -> int:
    """The priority that clients of NVIDIA Dynamo state, `nvext.agent_hints.priority`, negated: in
    Dynamo a higher number is more important, in vLLM a lower one. 0: none."""
    return -_dynamo_hint(body, "priority")


def _dynamo_hint(body: dict[str, Any], name: str) -> int:
    """A hint of Dynamo's clients: "priority", or "osl" (output length in tokens); 0: none."""
    hints = nvext.get("agent_hints") if isinstance(nvext := body.get("nvext"), dict) else None
    value = hints.get(name) if isinstance(hints, dict) else None
    return value if type(value) is int and abs(value) < 2**31 else 0


def _stops(body: dict[str, Any]) -> bool:
    """Whether something other than an end-of-text token may end the answer."""
    return any(body.get(name) for name in ("stop", "stop_token_ids", "repetition_detection"))


def _kind(body: dict[str, Any], endpoint: Endpoint) -> Kind:
    if endpoint.messages and body.get("tools") and body.get("tool_choice") != "none":
        return "tools"
    if _structured(body):
        return "structured"
    return "stop" if body.get("stop") or body.get("stop_token_ids") else PLAIN


def _structured(body: dict[str, Any]) -> bool:
    """Whether the answer must follow a schema, a grammar or the like. Older engines have fields
    for it whose names begin with `guided_`."""
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") != "text":
        return True
    if body.get("structured_outputs"):
        return True
    for name, value in body.items():  # noqa: SIM110 - a generator's steps are calls
        if value and name[:7] == "guided_":
            return True
    return False
