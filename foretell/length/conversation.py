"""What the length of an answer is guessed from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MOST_EXCHANGES = 4
"""Earlier exchanges that are looked at: the latest."""
ASSISTANT = "assistant"
KEPT_CHARACTERS = 4096
"""Characters that are kept of a text, half from its head and half from its tail."""


Kind = Literal["plain", "stop", "structured", "tools"]
"""What a request asks for beside text: stop strings or tokens, an answer that follows a schema or
grammar, or calls of tools. Answers of one kind have lengths of their own."""
PLAIN: Kind = "plain"

INSTRUCTING = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Exchange:
    """An earlier prompt of the conversation and what was answered; texts may be cut."""

    prompt: str
    answer: str
    answer_characters: int
    """Characters of the whole answer."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request as its text shows it. Texts may be cut in the middle; the counts are of all."""

    prompt: str
    """What is to be answered: the last message of the user, or the prompt of a completion."""
    characters: int
    """Characters of the whole prompt."""
    prompt_tokens: int
    """Tokens of everything the model reads: system prompt, earlier exchanges and prompt."""
    system: str = ""
    earlier: tuple[Exchange, ...] = ()
    """The latest `MOST_EXCHANGES`, oldest first."""
    exchanges: int = 0
    """How many there were in all."""
    max_tokens: int = 0
    """0: not limited by the client."""
    stops: int = 0
    """Stop strings."""
    min_tokens: int = 0
    """The engine does not end the answer before."""
    kind: Kind = PLAIN


@dataclass(frozen=True, slots=True)
class Question:
    """How many tokens will the answer of `model_name` have?"""

    model_name: str
    conversation: Conversation
    tenant: str = ""
    """Who asks; "" where that is not known."""


def head_and_tail(text: str, most_characters: int = KEPT_CHARACTERS) -> str:
    """At most so many characters of `text`: instructions stand at either end, seldom between."""
    if len(text) <= most_characters:
        return text
    tail = most_characters // 2
    return text[: most_characters - tail] + text[len(text) - tail :]


def split_chat(messages: Iterable[tuple[str, str]]) -> tuple[str, list[Exchange], str]:
    """System prompt, exchanges, and what is to be answered, of (role, text) pairs; uncut but for
    the exchanges.

    Messages between two answers make up one prompt. Those that were not answered, and the beginning
    of an answer where the last message is one, belong to what is to be answered.
    """
    system: list[str] = []
    asked: list[str] = []
    earlier: list[Exchange] = []
    for role, text in messages:
        if role in INSTRUCTING:
            system.append(text)
        elif role == ASSISTANT:
            prompt = head_and_tail("\n".join(asked))
            earlier.append(Exchange(prompt, head_and_tail(text), len(text)))
            asked.clear()
        else:
            asked.append(text)
    if not asked and earlier:
        begun = earlier.pop()
        asked = [begun.prompt, begun.answer]
    return "\n".join(filter(None, system)), earlier, "\n".join(asked)
