"""How long the answers of an emulated engine are: as the length model believes that ships.

A length is drawn from what the small model foretells of the prompt, by a hash of the prompt. So
the tagger means something on emulated engines, and one length is as uncertain as it believes. That
says nothing about its accuracy, as a real model does not ask it.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice
from math import exp
from statistics import NormalDist

from foretell.length.bins import quantiles
from foretell.length.conversation import Conversation, head_and_tail
from foretell.length.small import SmallModel, Weights, shipped
from foretell.services.backend.emulator.text import TOKEN, answer_start

_MEAN_TOKENS = 180.0  # of answers to prompts that have no text; about that of public chat traces
_SIGMA = 1.07
"""Standard deviation of the logarithm of their length: that of 10,000 ShareGPT prompts answered by
Llama-2-7b, the set of the Block paper."""
_NORMAL = NormalDist(-(_SIGMA**2) / 2, _SIGMA)
"""The logarithm of a length over the mean length."""


class Lengths:
    """Lengths of answers, the end-of-sequence token included."""

    def __init__(self) -> None:
        self._model = SmallModel(Weights.read(shipped()))

    def draw(self, tokens: Sequence[str], text: str, key: bytes = b"") -> int:
        """How many tokens will be generated after the prompt `tokens`.

        A prompt that ends in the beginning of its own answer gets the rest of it. `text`: what is
        asked, with or without that beginning; empty where the prompt came as token ids. `key`: what
        besides the prompt decides, at most 64 bytes.
        """
        start = answer_start(tokens, key)
        level = _level(tokens[:start], key)
        asked = _beginning(text, start)
        if asked:
            shares, _ = self._model.read([_conversation(asked, start)], [""])
            length = float(quantiles(shares, (level,))[0, 0])
        else:
            length = _MEAN_TOKENS * exp(_NORMAL.inv_cdf(level))
        return max(1, max(2, round(length)) - (len(tokens) - start))


def _level(tokens: Sequence[str], key: bytes) -> float:
    """A draw in (0, 1)."""
    digest = blake2b(" ".join(tokens).encode(), digest_size=8, key=key, person=b"length").digest()
    # The largest would round to 1, where the quantile is infinite.
    return min((int.from_bytes(digest) + 0.5) / 2**64, 1 - 2**-53)


def _beginning(text: str, count: int) -> str:
    """The text up to its token `count`, without what follows it."""
    ends = [found.end() for found in islice(TOKEN.finditer(text), count)]
    return text[: ends[-1]] if ends else ""


def _conversation(text: str, tokens: int) -> Conversation:
    clean = head_and_tail(text).encode(errors="replace").decode()  # of lone surrogates
    return Conversation(clean, len(text), tokens)
