"""The parts of a request from which the length of its answer is predicted."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MOST_EXCHANGES = 4
"""How many of the latest exchanges are used."""
ASSISTANT = "assistant"
KEPT_CHARACTERS = 4096
"""Characters that are kept of a text, half from its head and half from its tail."""


Kind = Literal["plain", "stop", "structured", "tools"]
"""What a request asks for besides text: stop strings or tokens, an answer that follows a schema or
grammar, or tool calls. Answer lengths differ between kinds."""
PLAIN: Kind = "plain"

INSTRUCTING = ("system", "developer")


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """An earlier prompt of the conversation and its answer; texts may be cut."""

    prompt: str
    answer: str
    answer_characters: int
    """Characters of the whole answer."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The text of a request. Texts may be cut in the middle; counts are of the whole texts."""

    prompt: str
    """What is to be answered: the last message of the user, or the prompt of a completion."""
    characters: int
    """Characters of the whole prompt."""
    prompt_tokens: int
    """Tokens of everything the model reads: system prompt, earlier exchanges and prompt."""
    system: str = ""
    earlier: tuple[EarlierTurn, ...] = ()
    """The latest `MOST_EXCHANGES`, oldest first."""
    exchanges: int = 0
    """Number of all earlier exchanges."""
    max_tokens: int = 0
    """0: not limited by the client."""
    stops: int = 0
    """Number of stop strings."""
    min_tokens: int = 0
    """Tokens before which the engine does not end the answer."""
    kind: Kind = PLAIN


@dataclass(frozen=True, slots=True)
class LengthQuestion:
    """The question how many tokens `model_name` will answer to a conversation."""

    model_name: str
    conversation: Conversation
    tenant: str = ""
    """The tenant that asks; "" if it is not known."""


def head_and_tail(text: str, most_characters: int = KEPT_CHARACTERS) -> str:
    """Both ends of `text`, `most_characters` at most: instructions are seldom in the middle."""
    if len(text) <= most_characters:
        return text
    tail = most_characters // 2
    return text[: most_characters - tail] + text[len(text) - tail :]


def split_chat(messages: Iterable[tuple[str, str]]) -> tuple[str, list[EarlierTurn], str]:
    """System prompt, exchanges, and text to be answered, from (role, text) pairs; only exchanges
    are cut.

    Messages between two answers form one prompt. The text to be answered is the messages after the
    last answer; if there are none, the last prompt with its answer, which is to be continued.
    """
    system: list[str] = []
    asked: list[str] = []
    earlier: list[EarlierTurn] = []
    for role, text in messages:
        if role in INSTRUCTING:
            system.append(text)
        elif role == ASSISTANT:
            prompt = head_and_tail("\n".join(asked))
            earlier.append(EarlierTurn(prompt, head_and_tail(text), len(text)))
            asked.clear()
        else:
            asked.append(text)
    if not asked and earlier:
        begun = earlier.pop()
        asked = [begun.prompt, begun.answer]
    return "\n".join(filter(None, system)), earlier, "\n".join(asked)
