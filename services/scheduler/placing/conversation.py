"""What placement reads of a request: its conversation, its tokens, and what it needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretell.length.conversation import (
    MOST_EXCHANGES,
    Conversation,
    Exchange,
    head_and_tail,
    split_chat,
)
from foretell.length.prompt import PRIOR_TOKENS_PER_MESSAGE
from foretell.openai.parsing import ApiRequest
from foretell.openai.parsing import without_surrogates as clean
from foretell.openai.surface import content_text
from foretell.placement.needs import Need


def conversation_of(request: ApiRequest, prompt_tokens: int) -> Conversation:
    """The conversation of a request: of several prompts the longest; empty for token ids."""
    system, prompt = "", request.text
    earlier: list[Exchange] = []
    if request.messages:
        system, earlier, prompt = split_chat(
            (message["role"], content_text(message.get("content"))) for message in request.messages
        )
    stop = request.body.get("stop")
    return Conversation(
        prompt=clean(head_and_tail(prompt)),
        characters=len(prompt),
        prompt_tokens=prompt_tokens,
        system=clean(head_and_tail(system)),
        earlier=tuple(
            Exchange(
                clean(exchange.prompt),
                clean(exchange.answer),
                exchange.answer_characters,
            )
            for exchange in earlier[-MOST_EXCHANGES:]
        ),
        exchanges=len(earlier),
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        kind=request.kind,
        stops=len(stop) if isinstance(stop, list) else int(isinstance(stop, str)),
    )


if TYPE_CHECKING:
    from tokenizers import Tokenizer

COUNTED_CHARS = 65_536
"""Characters that are tokenized at most, so that a long text does not block the event loop."""


class PromptCounter:
    """Counts text with a `tokenizer.json`; without one it counts nothing. What a chat template adds
    is taken as a constant per message, and a long text to go on like its beginning."""

    def __init__(self, path: str) -> None:
        self._tokenizer: Tokenizer | None = None
        if not path:
            return
        file = Path(path)
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file():
            raise SystemExit(f"tokenizer: {file} does not exist")
        import tokenizers  # noqa: PLC0415 - heavy, and few name one

        self._tokenizer = tokenizers.Tokenizer.from_file(str(file))

    def count(self, request: ApiRequest) -> int:
        """Prompt tokens of `request`; 0 when they cannot be counted."""
        if self._tokenizer is None or not request.text:
            return 0
        head = request.text[:COUNTED_CHARS]
        tokens = len(self._tokenizer.encode(head).ids) * len(request.text) / len(head)
        return round(tokens + PRIOR_TOKENS_PER_MESSAGE * len(request.messages))


KINDS: tuple[Literal["image", "audio", "video"], ...] = ("image", "audio", "video")


def need_of(request: ApiRequest, prompt_tokens: int, keeper: str = "") -> Need:
    """What an engine needs to serve the request, whose prompt is counted or estimated. `keeper`:
    the instance that keeps what it refers to."""
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


def _inputs(request: ApiRequest) -> frozenset[str]:
    """Kinds of inputs beside text in the messages."""
    kinds: set[str] = set()
    for message in request.messages:
        content = message.get("content")
        if isinstance(content, list):
            kinds |= {str(part.get("type")) for part in content if isinstance(part, dict)}
    if not kinds:
        return frozenset()
    told = "\n".join(kinds)
    return frozenset(kind for kind in KINDS if kind in told)
