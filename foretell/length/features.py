"""What can be seen of a conversation without understanding it, as numbers for a model.

The order is that of `NAMES`, and is part of a trained model: change it and train anew.
"""

import re
import string
from collections.abc import Callable
from math import log1p

from foretell.length import earlier
from foretell.length.conversation import Conversation

_TELLING = (
    "write", "list", "explain", "continue", "code", "summar", "table", "example", "translate",
    "rewrite", "short", "brief", "detail", "essay", "article", "story", "step", "word", "sentence",
    "json", "only", "yes or no", "please", "why", "how", "what", "more", "next", "again", "thank",
)  # fmt: skip
"""Looked for in the prompt, as parts of words too."""
_COUNTED = {
    "words": re.compile(r"(\d{1,5})[ -]*word"),
    "characters": re.compile(r"(\d{1,5})[ -]*(?:char|letter)"),
    "items": re.compile(
        r"(\d{1,5})[ -]*(?:sentence|paragraph|item|example|bullet|point|line|idea|step|question"
        r"|title|name|tip|reason|way|thing|fact|topic|keyword)"
    ),
}
"""How much the prompt asks for."""
_DIGITS, _CAPITALS = string.digits.encode(), string.ascii_uppercase.encode()
_GO_ON = re.compile(r"\W*(?:(?:please )?(?:continue|go on|keep going)|more|next|yes|ok(?:ay)?)\W*")


def features(conversation: Conversation) -> tuple[float, ...]:
    """One number for each of `NAMES`."""
    return (
        *(function(conversation) for function in _OF_REQUEST.values()),
        *_of_prompt(conversation.prompt),
        *earlier.features(conversation),
    )


_OF_REQUEST: dict[str, Callable[[Conversation], float]] = {
    "log_characters": lambda c: log1p(c.characters),
    "log_prompt_tokens": lambda c: log1p(c.prompt_tokens),
    "log_system_characters": lambda c: log1p(len(c.system)),
    "exchanges": lambda c: log1p(c.exchanges),
    "stops": lambda c: log1p(c.stops),
    "limited": lambda c: float(c.max_tokens > 0),
    "log_max_tokens": lambda c: log1p(c.max_tokens),
}
_OF_PROMPT = (
    "log_lines", "log_longest_line", "log_words", "word_characters", "log_sentences",
    "log_questions", "ends_with_question", "ends_with_colon", "code", "braces", "link", "quotes",
    "digits", "capitals", "not_ascii", "cjk", "go_on",
    *(f"log_asked_{name}" for name in _COUNTED), *(f"says {word}" for word in _TELLING),
)  # fmt: skip
NAMES = (*_OF_REQUEST, *_OF_PROMPT, *earlier.NAMES)


def _of_prompt(text: str) -> list[float]:
    lower, end, size, words = text.lower(), text.rstrip()[-1:], len(text) + 1, len(text.split())
    return [
        log1p(text.count("\n")),
        log1p(max(map(len, text.split("\n")))),
        log1p(words),
        size / (words + 1),
        log1p(text.count(". ")),
        log1p(text.count("?")),
        float(end == "?"),
        float(end == ":"),
        float("```" in text),
        float("{" in text),
        float("http" in lower),
        text.count('"') / size,
        _share(text, str.isdigit, _DIGITS),
        _share(text, str.isupper, _CAPITALS),
        earlier.share_not_ascii(text),
        earlier.share_cjk(text),
        float(_GO_ON.fullmatch(lower) is not None),
        *(_count(pattern, lower) for pattern in _COUNTED.values()),
        *(float(word in lower) for word in _TELLING),
    ]


def _share(text: str, kind: Callable[[str], bool], ascii_kind: bytes) -> float:
    """The share of the characters of a kind; `ascii_kind` has all ASCII characters of it."""
    if not text.isascii():
        return sum(map(kind, text)) / (len(text) + 1)
    others = text.encode().translate(None, ascii_kind)
    return (len(text) - len(others)) / (len(text) + 1)


def _count(pattern: re.Pattern[str], text: str) -> float:
    """log(1 + the number found); 0 where none is."""
    found = pattern.search(text)
    return log1p(int(found[1])) if found else 0.0
