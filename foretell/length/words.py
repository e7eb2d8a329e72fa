"""The words at the ends of a conversation's texts, as numbers for a small model.

The choice of words and their numbers is part of a trained model: after a change, train again.
"""

from itertools import pairwise
from zlib import crc32

from foretell.length.conversation import Conversation

BUCKETS = 1 << 13
"""Numbers are below this; different words may share one."""

_CHARACTERS_PER_WORD = 10  # for the part of a text that is split
_HEAD, _TAIL = 24, 24  # words of the prompt
_PAIRS_HEAD, _PAIRS_TAIL = 12, 8  # words of it that also count as pairs
_ASKED, _ANSWER_HEAD, _ANSWER_TAIL = 12, 4, 8  # words of the exchange before


def word_numbers(conversation: Conversation) -> list[int]:
    """The number of each word and of each pair of words, which depends on its place, too."""
    mask, prompt = BUCKETS - 1, conversation.prompt
    head = _first(prompt, _HEAD)
    tail = _last(prompt, _TAIL) if len(head) == _HEAD else []
    numbers = [0]  # there is always one
    numbers += [crc32(word, 1) & mask for word in head]
    numbers += [crc32(word, 2) & mask for word in tail]
    for words, place in ((head[:_PAIRS_HEAD], 3), (tail[-_PAIRS_TAIL:], 4)):
        numbers += [crc32(second, crc32(first, place)) & mask for first, second in pairwise(words)]
    if conversation.earlier:
        before = conversation.earlier[-1]
        numbers += [crc32(word, 5) & mask for word in _first(before.prompt, _ASKED)]
        numbers += [crc32(word, 6) & mask for word in _first(before.answer, _ANSWER_HEAD)]
        numbers += [crc32(word, 7) & mask for word in _last(before.answer, _ANSWER_TAIL)]
    return numbers


def _first(text: str, most: int) -> list[bytes]:
    looked_at = text[: most * _CHARACTERS_PER_WORD].encode(errors="replace").lower()
    return looked_at.split(None, most)[:most]


def _last(text: str, most: int) -> list[bytes]:
    looked_at = text[-most * _CHARACTERS_PER_WORD :].encode(errors="replace").lower()
    return looked_at.split()[-most:]
