"""What the length of an answer is guessed from."""

from dataclasses import dataclass

MOST_EXCHANGES = 4
"""Earlier exchanges that are looked at: the latest."""
KEPT_CHARACTERS = 4096
"""Of a text, half from its head and half from its tail."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An earlier prompt of the conversation and what was answered; texts may be cut."""

    prompt: str
    answer: str
    answer_characters: int
    """Of the whole answer."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request as its text shows it. Texts may be cut in the middle; the counts are of all."""

    prompt: str
    """What is to be answered: the last message of the user, or the prompt of a completion."""
    characters: int
    """Of that."""
    prompt_tokens: int
    """Of everything the model reads: system prompt, earlier exchanges and prompt."""
    system: str = ""
    earlier: tuple[Exchange, ...] = ()
    """The latest `MOST_EXCHANGES`, oldest first."""
    exchanges: int = 0
    """How many there were in all."""
    max_tokens: int = 0
    """0: not limited by the client."""
    stops: int = 0
    """Stop strings."""


def head_and_tail(text: str, most_characters: int = KEPT_CHARACTERS) -> str:
    """At most so many characters of `text`: instructions stand at either end, seldom between."""
    if len(text) <= most_characters:
        return text
    tail = most_characters // 2
    return text[: most_characters - tail] + text[len(text) - tail :]
