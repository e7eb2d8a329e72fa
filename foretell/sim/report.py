"""What a simulated cluster did."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from foretell.model import Prediction


@dataclass(frozen=True, slots=True)
class Served:
    """One request from its arrival to its last token; latencies count from `arrival_s`."""

    request_id: str
    instance_id: str
    arrival_s: float
    ttft_s: float
    e2e_s: float
    output_tokens: int
    preemptions: int
    predicted: Prediction | None
    """What was foretold of the chosen instance; None if the policy did not ask or none came."""


@dataclass(frozen=True, slots=True)
class Report:
    """All requests, in the order of their arrival."""

    served: tuple[Served, ...]
    makespan_s: float
    steps: int

    def mean(self, value: Callable[[Served], float]) -> float:
        """The mean of `value` over all requests, e.g. `lambda r: r.ttft_s`."""
        return fmean(map(value, self.served))

    def quantile(self, level: float, value: Callable[[Served], float]) -> float:
        """The nearest-rank quantile of `value`; `level` in [0, 1]."""
        ordered = sorted(map(value, self.served))
        return ordered[min(len(ordered) - 1, int(level * len(ordered)))]

    @property
    def preemptions(self) -> int:
        """Preemptions of all requests together."""
        return sum(request.preemptions for request in self.served)
