"""Admission: whether a request can still meet its TTFT target anywhere."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from foretell.model import Prediction, Slo

Late = Literal["serve", "reject"]
"""What to do with a request that no instance can answer in time."""


@dataclass(frozen=True, slots=True)
class Unattainable:
    """Why a request should not be admitted."""

    ttft_s: float
    """The lowest of all predicted TTFTs."""
    target_s: float

    @property
    def wait_s(self) -> float:
        """Seconds until the queues are short enough, if no other request arrives."""
        return self.ttft_s - self.target_s


def unattainable(slo: Slo, predictions: Iterable[Prediction]) -> Unattainable | None:
    """Return the reason to reject a request; None: admit it.

    A request that would be late delays others that could still be in time. It is rejected only if
    it has a TTFT target and even the lowest predicted quantile of TTFT (without quantiles: the
    mean) is above it at every instance that has a prediction. Predictions of uncalibrated twins
    count, as one good chance is enough. Instances without a prediction do not: they are assumed to
    be as busy as their peers (`foretell.policy.scoring`). Without any prediction no request is
    rejected; nor is one that can never run, as its engine's own error explains that better.
    """
    if slo.ttft_s == inf:
        return None
    earliest_s = min((_earliest_s(prediction) for prediction in predictions), default=inf)
    if not isfinite(earliest_s) or earliest_s <= slo.ttft_s:
        return None
    return Unattainable(earliest_s, slo.ttft_s)


def _earliest_s(prediction: Prediction) -> float:
    if not prediction.ttft_quantiles:
        return prediction.ttft_s
    return prediction.ttft_quantiles[0][1]
