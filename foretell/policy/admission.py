"""Admission: whether a request can still meet its TTFT target anywhere."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from foretell.model import Prediction, Slo

Late = Literal["serve", "reject"]
"""The treatment of a request that no instance could answer in time."""


@dataclass(frozen=True, slots=True)
class Unattainable:
    """Why a request should not be admitted."""

    ttft_s: float
    """The lowest of all predicted TTFTs."""
    target_s: float

    @property
    def wait_s(self) -> float:
        """Seconds until the queues in the way are short enough, if no other request comes."""
        return self.ttft_s - self.target_s


def unattainable(slo: Slo, predictions: Iterable[Prediction]) -> Unattainable | None:
    """Reject with the reason that this returns; None: admit.

    A request that comes too late nevertheless delays others, which could still be in time. It is
    only rejected if it has a TTFT target and even the lowest predicted quantile of TTFT (the mean,
    of a prediction without quantiles) is above it at every instance that predicted. Uncalibrated
    twins count too, as one good chance is enough. Instances that are silent do not: they are
    believed to be as busy as their peers (`foretell.policy.scoring`). Where nobody predicted,
    nobody is rejected; nor is what could never run anywhere, as its engine knows better what to
    say.
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
