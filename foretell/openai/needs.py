"""What a request needs of an engine."""

from typing import Literal

from foretell.openai.parsing import ApiRequest
from foretell.placement.needs import Need

KINDS: tuple[Literal["image", "audio", "video"], ...] = ("image", "audio", "video")


def need_of(request: ApiRequest, prompt_tokens: int, keeper: str = "") -> Need:
    """What an engine needs to serve the request. `prompt_tokens` is counted or estimated. `keeper`
    is the instance that keeps the response that the request continues; "": none or unknown."""
    truncated = request.body.get("truncate_prompt_tokens")
    if type(truncated) is int:
        prompt_tokens = min(prompt_tokens, max(0, truncated))  # -1: the engine cuts to what fits
    generated = 1 if request.endpoint.generates else 0
    longest = max(generated, request.max_tokens) if request.endpoint.generates else 0
    return Need(
        tokens=prompt_tokens + longest,
        least_tokens=prompt_tokens + generated,
        inputs=_inputs(request),
        keeper=keeper,
    )


def _inputs(request: ApiRequest) -> frozenset[str]:
    """The kinds of input other than text in the messages."""
    kinds: set[str] = set()
    for message in request.messages:
        content = message.get("content")
        if isinstance(content, list):
            kinds |= {str(part.get("type")) for part in content if isinstance(part, dict)}
    if not kinds:
        return frozenset()
    joined = "\n".join(kinds)
    return frozenset(kind for kind in KINDS if kind in joined)
