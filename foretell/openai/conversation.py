"""The conversation in a request, as length models read it."""

from foretell.length.conversation import (
    MOST_EXCHANGES,
    Conversation,
    EarlierTurn,
    head_and_tail,
    split_chat,
)
from foretell.openai.parsing import ApiRequest
from foretell.openai.parsing import without_surrogates as clean
from foretell.openai.surface import content_text


def conversation_of(request: ApiRequest, prompt_tokens: int) -> Conversation:
    """The conversation of a request: the longest of several prompts, empty for token ids."""
    system, prompt = "", request.text
    earlier: list[EarlierTurn] = []
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
            EarlierTurn(
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
