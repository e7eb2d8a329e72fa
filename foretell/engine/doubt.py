"""Whether an engine's predictions can be trusted, as its latest answers show.

Of an engine that is observed from outside only its streams are known. Where they mislead,
predictions may be off by a factor of several, and placing by load is better than placing by them.
Errors of length estimates do not count: a latency is compared with what was predicted for an answer
of its length. TTFT scatters, since it depends on the lengths of others' answers, so only the bias
of its predictions counts.
"""

from collections import deque
from math import exp, isfinite, log
from statistics import median

from foretell.model import Prediction

DOUBTED = "its latest predictions were off by more than a factor of 2: placed by load"
_MOST, _AGAIN = log(2.0), log(1.6)
"""Medians of |log(predicted / actual)| of e2e latency, or of log(predicted / actual) of TTFT: above
the first predictions are no longer used, below the second they are used again."""
_ANSWERS, _FEWEST = 32, 12
"""The latest answers that count, and how many there must be."""
_SLIGHT_S = 0.05
"""Added to both latencies, so that differences of milliseconds do not matter."""


class Doubt:
    """The errors of one engine's predictions."""

    def __init__(self) -> None:
        self.is_doubted = False
        self._ttft: deque[float] = deque(maxlen=_ANSWERS)
        self._e2e: deque[float] = deque(maxlen=_ANSWERS)

    @property
    def factor(self) -> float:
        """By how much predictions are off at the median, the worse of TTFT and e2e: at least 1."""
        ttft = abs(median(self._ttft)) if len(self._ttft) >= _FEWEST else 0.0
        e2e = median(map(abs, self._e2e)) if len(self._e2e) >= _FEWEST else 0.0
        return exp(max(ttft, e2e))

    def add(self, prediction: Prediction, ttft_s: float, e2e_s: float, tokens: float) -> None:
        """An answer of so many tokens took so long; 0: not known."""
        if ttft_s > 0.0:
            _note(self._ttft, prediction.ttft_s, ttft_s)
        if e2e_s > 0.0 and tokens > 0.0:
            decoding_s = prediction.tpot_s * max(0.0, tokens - 1.0)
            _note(self._e2e, prediction.ttft_s + decoding_s, e2e_s)
        self.is_doubted = log(self.factor) > (_AGAIN if self.is_doubted else _MOST)


def _note(errors: deque[float], predicted_s: float, actual_s: float) -> None:
    if isfinite(predicted_s):
        errors.append(log((predicted_s + _SLIGHT_S) / (actual_s + _SLIGHT_S)))
