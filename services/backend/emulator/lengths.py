"""How long the answers of an emulated engine are: as the shipped small length model predicts.

A length is drawn by a hash of the prompt from the distribution that the model predicts for it. So
estimates are meaningful on emulated engines, and lengths are as uncertain as predicted. This says
nothing about the estimates' accuracy on real models.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import exp
from statistics import NormalDist

from foretell.length.bins import quantiles
from foretell.length.conversation import Conversation, head_and_tail
from foretell.length.small import SmallModel, Weights, shipped

_MEAN_TOKENS = 180.0  # of answers to prompts that have no text; about that of public chat traces
_SIGMA = 1.07
"""Standard deviation of the logarithm of their length: that of 10,000 ShareGPT prompts answered by
Llama-2-7b, the set of the Block paper."""
_NORMAL = NormalDist(-(_SIGMA**2) / 2, _SIGMA)
"""Distribution of log(length / mean length)."""


class EmulatedLengths:
    """Lengths of answers, the end-of-sequence token included."""

    def __init__(self) -> None:
        self._model = SmallModel(Weights.read(shipped()))

    def draw(self, tokens: Sequence[str], text: str, key: bytes = b"") -> int:
        """Draw how many tokens will be generated after the prompt `tokens`.

        `text`: the question; empty if the prompt came as token ids. `key`: what else the draw
        depends on, at most 64 bytes.
        """
        level = _level(tokens, key)
        if text:
            clean = head_and_tail(text).encode(errors="replace").decode()  # no lone surrogates
            asked = Conversation(clean, len(text), len(tokens))
            shares, _ = self._model.read([asked], [""])
            return max(2, round(float(quantiles(shares, (level,))[0, 0])))
        return max(2, round(_MEAN_TOKENS * exp(_NORMAL.inv_cdf(level))))


def _level(tokens: Sequence[str], key: bytes) -> float:
    """A draw in (0, 1)."""
    digest = blake2b(" ".join(tokens).encode(), digest_size=8, key=key, person=b"length").digest()
    # The largest would round to 1, where the quantile is infinite.
    return min((int.from_bytes(digest) + 0.5) / 2**64, 1 - 2**-53)
