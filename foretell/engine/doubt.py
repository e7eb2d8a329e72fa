"""Whether an engine's predictions can be trusted, according to its latest answers.

Of an observed engine only its streams are known. If they mislead, predictions may be off by a
factor of several, and placement by load is better than placement by prediction. Errors of length
estimates do not count: a latency is compared with the prediction for an answer of the actual
length. TTFT scatters, because it depends on the lengths of other answers, so only the bias of its
predictions counts.
"""

from collections import deque
from math import exp, isfinite, log
from statistics import median

from foretell.model import Prediction

DOUBTED = "its latest predictions were off by more than a factor of 2: placed by load"
_MOST, _AGAIN = log(2.0), log(1.6)
"""Limits of the median of |log(predicted / actual)| of e2e latency, and of |the median of
log(predicted / actual)| of TTFT: above the first predictions are doubted, up to the second again
trusted."""
_ANSWERS, _FEWEST = 32, 12
"""The latest answers that count, and the fewest with which there is a doubt."""
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
        """The factor by which predictions are off, the worse of TTFT and e2e; at least 1."""
        ttft = abs(median(self._ttft)) if len(self._ttft) >= _FEWEST else 0.0
        e2e = median(map(abs, self._e2e)) if len(self._e2e) >= _FEWEST else 0.0
        return exp(max(ttft, e2e))

    def add(self, prediction: Prediction, ttft_s: float, e2e_s: float, tokens: float) -> None:
        """Note the latencies and the tokens of an answer; 0: not known."""
        if ttft_s > 0.0:
            _note(self._ttft, prediction.ttft_s, ttft_s)
        if e2e_s > 0.0 and tokens > 0.0:
            decoding_s = prediction.tpot_s * max(0.0, tokens - 1.0)
            _note(self._e2e, prediction.ttft_s + decoding_s, e2e_s)
        self.is_doubted = log(self.factor) > (_AGAIN if self.is_doubted else _MOST)


def _note(errors: deque[float], predicted_s: float, actual_s: float) -> None:
    if isfinite(predicted_s):
        errors.append(log((predicted_s + _SLIGHT_S) / (actual_s + _SLIGHT_S)))
