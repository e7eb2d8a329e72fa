"""Features of a conversation's earlier answers: how long they were, and to which prompts."""

import re
from collections.abc import Sequence
from math import exp, log1p, sqrt

from foretell.length.conversation import MOST_EXCHANGES, Conversation, EarlierTurn

_LATEST = 3
_LOOKED_AT = 400
"""Characters of an answer from which its alphabet is recognised."""
_COMPARED_WORDS, _COMPARED_CHARACTERS = 150, 200
"""How much of the beginnings of two prompts is compared."""
_RECENT, _REMEMBERED = (
    [exp(-ago / exchanges) for ago in range(MOST_EXCHANGES)] for exchanges in (3.0, 8.0)
)
"""Weights of answers, the latest first: they fall by a factor of e in 3 or in 8 exchanges."""
_SENTENCE_ENDS, _ENDS = frozenset(".!?"), frozenset(".!?`")
_NEAR = 0.5
"""Difference of the logarithms of two prompts' lengths up to which they count as near."""
_NUMBERED, _BULLETS = re.compile(r"\d+[.)]"), frozenset("-*•")
_NOT_ASCII, _CJK = re.compile(r"[^\x00-\x7f]+"), re.compile("[\u3000-\U0010ffff]+")
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
    """One number for each of `NAMES`; all 0 if there is no earlier answer."""
    if not conversation.earlier:
        return (0.0,) * len(NAMES)
    exchanges = conversation.earlier[: -MOST_EXCHANGES - 1 : -1]  # the latest first
    logs = [log1p(_tokens(exchange)) for exchange in exchanges]
    return (
        *_lengths(conversation, exchanges, logs),
        *_alike(conversation, exchanges, logs),
        *_form(exchanges),
    )


QUICK_NAMES = tuple(
    name
    for name in NAMES
    if name
    not in {
        "log_answer_to_similar", "log_answer_to_most_similar", "most_similar", "log_answer_to_it",
        "answer_log_numbered", "answer_log_bullets", "answer_not_ascii",
    }
)  # fmt: skip
"""The cheap ones: words are not compared, and the answer is not read line by line."""


def quick_features(conversation: Conversation) -> tuple[float, ...]:
    """The features of `QUICK_NAMES`; otherwise like `features`."""
    if not conversation.earlier:
        return (0.0,) * len(QUICK_NAMES)
    exchanges = conversation.earlier[: -MOST_EXCHANGES - 1 : -1]
    logs = [log1p(_tokens(exchange)) for exchange in exchanges]
    recent, near, nearest = _by_length(conversation, exchanges, logs)
    answer = exchanges[0].answer
    return (
        *_lengths(conversation, exchanges, logs),
        *(recent, near, *_by_beginning(conversation, exchanges, logs), nearest),
        *(*_code_and_end(answer), *_kind(answer), *_of_all(exchanges)),
    )


def share_not_ascii(text: str) -> float:
    """The share of the characters that are not ASCII."""
    if text.isascii():
        return 0.0
    return sum(map(len, _NOT_ASCII.findall(text))) / (len(text) + 1)


def share_cjk(text: str) -> float:
    """The share of the characters from U+3000 on: mostly Chinese, Japanese and Korean."""
    if text.isascii():
        return 0.0
    return sum(map(len, _CJK.findall(text))) / (len(text) + 1)


def _tokens(exchange: EarlierTurn) -> float:
    """Estimated tokens of the answer: one per 4 ASCII characters, 2 others, or 1 CJK character."""
    seen = exchange.answer[:_LOOKED_AT]
    other, cjk = share_not_ascii(seen), share_cjk(seen)
    return exchange.answer_characters * (0.25 + 0.25 * other + 0.5 * cjk)


def _lengths(
    conversation: Conversation, exchanges: Sequence[EarlierTurn], logs: list[float]
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
    conversation: Conversation, exchanges: Sequence[EarlierTurn], logs: list[float]
) -> list[float]:
    """Answers to similar prompts: means weighted by similarity, and that to the most similar."""
    recent, near, nearest = _by_length(conversation, exchanges, logs)
    similar, most_similar, most, to_it = _by_words(conversation, exchanges, logs)
    beginning, longest, to_that = _by_beginning(conversation, exchanges, logs)
    return [
        *(recent, near, similar, most_similar, beginning),
        *(most, to_it, longest, to_that, nearest),
    ]


def _by_length(
    conversation: Conversation, exchanges: Sequence[EarlierTurn], logs: list[float]
) -> tuple[float, float, float]:
    size = log1p(conversation.characters)
    apart = [abs(log1p(len(exchange.prompt)) - size) for exchange in exchanges]
    near = [w * exp(-((d / _NEAR) ** 2) / 2) for w, d in zip(_REMEMBERED, apart, strict=False)]
    return (
        _mean(logs, _RECENT[: len(exchanges)]),
        _mean(logs, near),
        logs[apart.index(min(apart))],
    )


def _by_words(
    conversation: Conversation, exchanges: Sequence[EarlierTurn], logs: list[float]
) -> tuple[float, float, float, float]:
    words = _words(conversation.prompt)
    shared = [_overlap(words, _words(exchange.prompt)) for exchange in exchanges]
    most = shared.index(max(shared))
    return (
        _mean(logs, [w * exp(4 * s) for w, s in zip(_REMEMBERED, shared, strict=False)]),
        _mean(logs, [exp(12 * s) for s in shared]),
        shared[most],
        logs[most],
    )


def _by_beginning(
    conversation: Conversation, exchanges: Sequence[EarlierTurn], logs: list[float]
) -> tuple[float, float, float]:
    begins = conversation.prompt[:_COMPARED_CHARACTERS]
    same = [_same_beginning(begins, exchange.prompt) for exchange in exchanges]
    longest = same.index(max(same))
    return (
        _mean(logs, [w * exp(6 * s) for w, s in zip(_REMEMBERED, same, strict=False)]),
        same[longest],
        logs[longest],
    )


def _form(exchanges: Sequence[EarlierTurn]) -> list[float]:
    """Features of the form of the latest answer, and of all answers."""
    answer = exchanges[0].answer
    return [
        *_code_and_end(answer),
        *map(log1p, _items(answer)),
        *_kind(answer),
        share_not_ascii(answer),
        *_of_all(exchanges),
    ]


def _code_and_end(answer: str) -> tuple[float, ...]:
    end, marks = answer.rstrip()[-1:], answer.count("```")
    return (
        float(marks > 0),
        float(marks % 2),
        float(end in _SENTENCE_ENDS),
        float(end == ":"),
        float(end == "`"),
        log1p(answer.count("\n")),
    )


def _kind(answer: str) -> tuple[float, ...]:
    lower = answer[:20].lower()
    return (
        float("|" in answer),
        float(lower.startswith(_DECLINES)),
        float(lower.startswith(_AGREES)),
    )


def _of_all(exchanges: Sequence[EarlierTurn]) -> tuple[float, float]:
    return (
        sum("```" in exchange.answer for exchange in exchanges) / len(exchanges),
        sum(e.answer.rstrip()[-1:] in _ENDS for e in exchanges) / len(exchanges),
    )


def _items(text: str) -> tuple[int, int]:
    """Lines that begin with a number, and with a bullet."""
    numbered = bullets = 0
    for line in text.split("\n"):
        begins = line.lstrip()
        first = begins[:1]
        if first in _BULLETS:
            bullets += 1
        elif first.isdigit() and _NUMBERED.match(begins):
            numbered += 1
    return numbered, bullets


def _words(text: str) -> set[str]:
    return set(text.lower().split(None, _COMPARED_WORDS)[:_COMPARED_WORDS])


def _overlap(a: set[str], b: set[str]) -> float:
    """The Jaccard similarity."""
    return len(a & b) / max(1, len(a | b))


def _same_beginning(begins: str, other: str) -> float:
    """Common beginning as a share of the shorter text; both are cut to `_COMPARED_CHARACTERS`."""
    compared = min(len(begins), len(other), _COMPARED_CHARACTERS)
    same = next((i for i in range(compared) if begins[i] != other[i]), compared)
    return same / max(1, compared)


def _mean(values: list[float], weights: list[float]) -> float:
    """The weighted mean; all weights may be 0."""
    total = sum(weights) + 1e-9
    return sum(v * (w + 1e-9 / len(values)) for v, w in zip(values, weights, strict=True)) / total
