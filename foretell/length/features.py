"""Surface features of a conversation, as numbers for a model.

Their order is that of `NAMES`, and part of a trained model: after a change, train again.
"""

import re
import string
from collections.abc import Callable, Sequence
from math import log1p

from foretell.length import earlier
from foretell.length.conversation import Conversation

_TELLING = (
    "write", "list", "explain", "continue", "code", "summar", "table", "example", "translate",
    "rewrite", "short", "brief", "detail", "essay", "article", "story", "step", "word", "sentence",
    "json", "only", "yes or no", "please", "why", "how", "what", "more", "next", "again", "thank",
)  # fmt: skip
"""Searched for in the prompt, also as parts of words."""
_COUNTED = {
    name: (words, re.compile(rf"(\d{{1,5}})[ -]*(?:{'|'.join(words)})"))
    for name, words in {
        "words": ("word",),
        "characters": ("char", "letter"),
        "items": (
            "sentence", "paragraph", "item", "example", "bullet", "point", "line", "idea", "step",
            "question", "title", "name", "tip", "reason", "way", "thing", "fact", "topic",
            "keyword",
        ),
    }.items()
}  # fmt: skip
"""Units in which a prompt says how much it asks for."""
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


_QUICK_OF_PROMPT = (
    "log_lines", "log_words", "log_sentences", "ends_with_question", "ends_with_colon", "code",
    "braces", "link", "not_ascii", "go_on",
)  # fmt: skip
QUICK_NAMES = (*_OF_REQUEST, *_QUICK_OF_PROMPT, *earlier.QUICK_NAMES)


def quick_features(conversation: Conversation) -> tuple[float, ...]:
    """One number for each of `QUICK_NAMES`: the same as `features` gives, in half the time."""
    text = conversation.prompt
    lower, end = text.lower(), text.rstrip()[-1:]
    return (
        *(function(conversation) for function in _OF_REQUEST.values()),
        log1p(text.count("\n")),
        log1p(len(text.split())),
        log1p(text.count(". ")),
        float(end == "?"),
        float(end == ":"),
        float("```" in text),
        float("{" in text),
        float("http" in lower),
        earlier.share_not_ascii(text),
        float(_GO_ON.fullmatch(lower) is not None),
        *earlier.quick_features(conversation),
    )


def _of_prompt(text: str) -> list[float]:
    lower, end, size, words = text.lower(), text.rstrip()[-1:], len(text) + 1, len(text.split())
    digits, capitals = _digits_and_capitals(text)
    counted = [0.0] * len(_COUNTED)
    if digits:
        counted = [_count(units, pattern, lower) for units, pattern in _COUNTED.values()]
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
        digits / size,
        capitals / size,
        earlier.share_not_ascii(text),
        earlier.share_cjk(text),
        float(_GO_ON.fullmatch(lower) is not None),
        *counted,
        *(float(word in lower) for word in _TELLING),
    ]


def _digits_and_capitals(text: str) -> tuple[int, int]:
    """The numbers of digits and capitals."""
    if not text.isascii():
        return sum(map(str.isdigit, text)), sum(map(str.isupper, text))
    raw = text.encode()
    others = (raw.translate(None, _DIGITS), raw.translate(None, _CAPITALS))
    return len(raw) - len(others[0]), len(raw) - len(others[1])


def _count(words: Sequence[str], pattern: re.Pattern[str], text: str) -> float:
    """log(1 + the number found); 0 if none is."""
    if not any(word in text for word in words):  # quicker than the pattern
        return 0.0
    found = pattern.search(text)
    return log1p(int(found[1])) if found else 0.0
