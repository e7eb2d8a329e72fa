"""What can be seen of a conversation without understanding it, as numbers for a model.

The order is that of `NAMES`, and is part of a trained model: change it and train anew.
"""

import re
from collections.abc import Callable
from math import log1p

from foretell.length.conversation import Conversation

_TELLING = (
    "write", "list", "explain", "continue", "code", "summar", "table", "example", "translate",
    "rewrite", "short", "brief", "detail", "essay", "article", "story", "step", "word", "sentence",
    "json", "only", "yes or no", "please", "why", "how", "what", "more", "next", "again", "thank",
)  # fmt: skip
"""Looked for in the prompt, as parts of words too."""
_COUNTED = re.compile(
    r"(\d{1,5})[ -]*(?:word|sentence|paragraph|item|example|bullet|point|line|idea|step|question)"
)
_LATEST = 3


def features(conversation: Conversation) -> tuple[float, ...]:
    """One number for each of `NAMES`."""
    return (
        *(function(conversation) for function in _OF_REQUEST.values()),
        *_of_prompt(conversation),
        *_of_answers(conversation),
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
    "log_lines", "code", "log_questions", "ends_with_question", "digits", "not_ascii",
    "asked_for_count", "log_count", *(f"says {word}" for word in _TELLING),
)  # fmt: skip
_OF_ANSWERS = (
    *(f"log_answer_{ago}" for ago in range(1, _LATEST + 1)),
    "mean_log_answer", "most_log_answer", "least_log_answer", "log_last_prompt",
)  # fmt: skip
NAMES = (*_OF_REQUEST, *_OF_PROMPT, *_OF_ANSWERS)


def _of_prompt(conversation: Conversation) -> list[float]:
    text = conversation.prompt
    lower, size = text.lower(), len(text) + 1
    counted = _COUNTED.search(lower)
    return [
        log1p(text.count("\n")),
        float("```" in text),
        log1p(text.count("?")),
        float(text.rstrip().endswith("?")),
        sum(map(str.isdigit, text)) / size,
        sum(not character.isascii() for character in text) / size,
        float(counted is not None),
        log1p(int(counted[1])) if counted else 0.0,
        *(float(word in lower) for word in _TELLING),
    ]


def _of_answers(conversation: Conversation) -> list[float]:
    """Zeros where nothing was answered yet."""
    if not conversation.earlier:
        return [0.0] * len(_OF_ANSWERS)
    logs = [log1p(exchange.answer_characters) for exchange in reversed(conversation.earlier)]
    latest = [*logs, *[0.0] * _LATEST][:_LATEST]
    mean = sum(logs) / len(logs)
    return [*latest, mean, max(logs), min(logs), log1p(len(conversation.earlier[-1].prompt))]
