"""What the earlier answers of a conversation say about the next: how long they were, to what."""

import re
from collections.abc import Sequence
from math import exp, log1p, sqrt

from foretell.length.conversation import Conversation, Exchange

_LATEST = 3
_LOOKED_AT = 400
"""Characters of an answer that its alphabet is told from."""
_COMPARED_WORDS, _COMPARED_CHARACTERS = 150, 200
"""How much of the beginnings of two prompts is compared."""
_RECENT, _REMEMBERED = 3.0, 8.0
"""Exchanges in which the weight of an answer falls by a factor of e."""
_NEAR = 0.5
"""Difference of the logarithms of two prompts' lengths up to which they count as near."""
_NUMBERED, _BULLETS = (re.compile(form, re.M) for form in (r"^\s*\d+[.)]", r"^\s*[-*•]"))
_DECLINES = ("i'm sorry", "as an ai", "i apolog")
_AGREES = ("sure", "certainly", "yes", "of course")

NAMES = (
    *(f"log_answer_{ago}" for ago in range(1, _LATEST + 1)),
    "mean_log_answer", "median_log_answer", "most_log_answer", "least_log_answer",
    "deviation_log_answer", "log_last_prompt", "log_last_prompt_ratio", "log_last_answer_ratio",
    "mean_log_answer_ratio", "recent_log_answer", "log_answer_to_near_length",
    "log_answer_to_similar", "log_answer_to_most_similar", "log_answer_to_same_beginning",
    "most_similar", "log_answer_to_it", "longest_same_beginning", "log_answer_to_that",
    "log_answer_to_nearest_length", "answer_code", "answer_open_code", "answer_ends_sentence",
    "answer_ends_with_colon", "answer_ends_code", "answer_log_lines", "answer_log_numbered",
    "answer_log_bullets", "answer_table", "answer_declines", "answer_agrees", "answer_not_ascii",
    "answers_code", "answers_ended",
)  # fmt: skip


def features(conversation: Conversation) -> tuple[float, ...]:
    """One number for each of `NAMES`; all 0 where nothing was answered yet."""
    if not conversation.earlier:
        return (0.0,) * len(NAMES)
    exchanges = conversation.earlier[::-1]  # the latest first
    logs = [log1p(_tokens(exchange)) for exchange in exchanges]
    return (
        *_lengths(conversation, exchanges, logs),
        *_alike(conversation, exchanges, logs),
        *_form(exchanges),
    )


def share_not_ascii(text: str) -> float:
    """The share of the characters that are not ASCII."""
    if text.isascii():
        return 0.0
    return sum(not character.isascii() for character in text) / (len(text) + 1)


def share_cjk(text: str) -> float:
    """The share of the characters from U+3000 on: mostly Chinese, Japanese and Korean."""
    if text.isascii():
        return 0.0
    return sum(character >= "\u3000" for character in text) / (len(text) + 1)


def _tokens(exchange: Exchange) -> float:
    """About how many the answer had: a token is some 4 ASCII characters, 2 other, or 1 CJK."""
    seen = exchange.answer[:_LOOKED_AT]
    other, cjk = share_not_ascii(seen), share_cjk(seen)
    return exchange.answer_characters * (0.25 + 0.25 * other + 0.5 * cjk)


def _lengths(
    conversation: Conversation, exchanges: Sequence[Exchange], logs: list[float]
) -> list[float]:
    mean, ordered = sum(logs) / len(logs), sorted(logs)
    asked = [log1p(len(exchange.prompt)) for exchange in exchanges]
    return [
        *[*logs, *[0.0] * _LATEST][:_LATEST],
        mean,
        (ordered[len(logs) // 2] + ordered[-len(logs) // 2]) / 2,
        ordered[-1],
        ordered[0],
        sqrt(sum((log - mean) ** 2 for log in logs) / len(logs)),
        asked[0],
        asked[0] - log1p(conversation.characters),
        logs[0] - asked[0],
        mean - sum(asked) / len(asked),
    ]


def _alike(
    conversation: Conversation, exchanges: Sequence[Exchange], logs: list[float]
) -> list[float]:
    """What was answered to prompts like this one: means weighted by likeness, and the likest."""
    words = _words(conversation.prompt)
    begins = conversation.prompt[:_COMPARED_CHARACTERS]
    size = log1p(conversation.characters)
    apart = [abs(log1p(len(exchange.prompt)) - size) for exchange in exchanges]
    shared = [_overlap(words, _words(exchange.prompt)) for exchange in exchanges]
    same = [_same_beginning(begins, exchange.prompt) for exchange in exchanges]
    remembered = [exp(-ago / _REMEMBERED) for ago in range(len(exchanges))]
    most, longest = shared.index(max(shared)), same.index(max(same))
    return [
        _mean(logs, [exp(-ago / _RECENT) for ago in range(len(exchanges))]),
        _mean(
            logs, [w * exp(-((d / _NEAR) ** 2) / 2) for w, d in zip(remembered, apart, strict=True)]
        ),
        _mean(logs, [w * exp(4 * s) for w, s in zip(remembered, shared, strict=True)]),
        _mean(logs, [exp(12 * s) for s in shared]),
        _mean(logs, [w * exp(6 * s) for w, s in zip(remembered, same, strict=True)]),
        shared[most],
        logs[most],
        same[longest],
        logs[longest],
        logs[apart.index(min(apart))],
    ]


def _form(exchanges: Sequence[Exchange]) -> list[float]:
    """Features of the form of the latest answer, and of all answers."""
    answer = exchanges[0].answer
    lower, end = answer[:20].lower(), answer.rstrip()[-1:]
    return [
        float("```" in answer),
        float(answer.count("```") % 2),
        float(end in set(".!?")),
        float(end == ":"),
        float(end == "`"),
        log1p(answer.count("\n")),
        log1p(len(_NUMBERED.findall(answer))),
        log1p(len(_BULLETS.findall(answer))),
        float("|" in answer),
        float(lower.startswith(_DECLINES)),
        float(lower.startswith(_AGREES)),
        share_not_ascii(answer),
        sum("```" in exchange.answer for exchange in exchanges) / len(exchanges),
        sum(e.answer.rstrip()[-1:] in set(".!?`") for e in exchanges) / len(exchanges),
    ]


def _words(text: str) -> set[str]:
    return set(text.lower().split()[:_COMPARED_WORDS])


def _overlap(a: set[str], b: set[str]) -> float:
    """Jaccard's."""
    return len(a & b) / max(1, len(a | b))


def _same_beginning(begins: str, other: str) -> float:
    """Share of the shorter text, each cut to `_COMPARED_CHARACTERS`."""
    compared = min(len(begins), len(other), _COMPARED_CHARACTERS)
    same = next((i for i in range(compared) if begins[i] != other[i]), compared)
    return same / max(1, compared)


def _mean(values: list[float], weights: list[float]) -> float:
    """Weighted; nearly all weights may be 0."""
    total = sum(weights) + 1e-9
    return sum(v * (w + 1e-9 / len(values)) for v, w in zip(values, weights, strict=True)) / total
