"""What a simulated cluster did."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from foretell.engine.batch import FreeBlocks
from foretell.model import NO_SLO, Prediction, Slo
from foretell.provision import ProvisionDecision


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request from its arrival to its last token; latencies count from `arrival_s`."""

    request_id: str
    instance_id: str
    arrival_s: float
    ttft_s: float
    e2e_s: float
    output_tokens: int
    preemptions: int
    predicted: Prediction | None
    """The prediction for the chosen instance; None if the policy did not ask or there was none."""
    attempts: int = 1
    placed_s: float = 0.0
    """When its instance was chosen; later than `arrival_s` if it waited for its turn or was held
    back."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at its latest admission."""
    slo: Slo = NO_SLO

    @property
    def tpot_s(self) -> float:
        """Mean seconds per token after the first; 0 if there is only one."""
        return (self.e2e_s - self.ttft_s) / max(1, self.output_tokens - 1)

    @property
    def within_slo(self) -> bool:
        """Whether it met its targets, if it had any."""
        return self.slo.met(self.ttft_s, self.tpot_s)


@dataclass(frozen=True, slots=True)
class FleetSize:
    """The numbers of instances from `at_s` on."""

    at_s: float
    warming: int
    ready: int
    draining: int

    @property
    def instances(self) -> int:
        """All instances that are paid for."""
        return self.warming + self.ready + self.draining


@dataclass(frozen=True, slots=True)
class Report:
    """All requests, in the order of their arrival."""

    served: tuple[ServedRequest, ...]
    lost: tuple[str, ...]
    """Ids of the requests whose engine died in mid-answer, or that found no engine."""
    makespan_s: float
    """Seconds from the first arrival to the last token."""
    steps: int
    free_blocks_mean: float
    """Mean over instances and time, from the first arrival to the last one."""
    free_blocks_var: float
    samples: tuple[tuple[float, tuple[int, ...]], ...] = ()
    """Free blocks of every instance at some moments (`ClusterConfig.sample_every_s`)."""
    rejected: tuple[str, ...] = ()
    """Ids of the requests that were not admitted (`ClusterConfig.reject_late`)."""
    computed_tokens: int = 0
    """Tokens computed by all steps: prompts, outputs, tokens recomputed after a preemption, and
    with async scheduling one token beyond each end that could not be foreseen."""

    instance_s: float = 0.0
    """Instance-seconds from the first arrival to the last one, warming and draining instances
    included."""
    sizes: tuple[FleetSize, ...] = ()
    """The numbers of instances, and when they changed."""
    decisions: tuple[ProvisionDecision, ...] = ()
    """The provisioner's decisions."""

    def mean(self, value: Callable[[ServedRequest], float]) -> float:
        """The mean of `value` over all served requests, e.g. `lambda r: r.ttft_s`."""
        return fmean(map(value, self.served))

    def quantile(self, level: float, value: Callable[[ServedRequest], float]) -> float:
        """The nearest-rank quantile of `value`; `level` in [0, 1]."""
        ordered = sorted(map(value, self.served))
        return ordered[min(len(ordered) - 1, int(level * len(ordered)))]

    @property
    def preemptions(self) -> int:
        """Preemptions of all served requests together."""
        return sum(request.preemptions for request in self.served)

    @property
    def throughput_rps(self) -> float:
        """Requests served per second."""
        return len(self.served) / self.makespan_s if self.makespan_s > 0 else 0.0

    @property
    def within_slo(self) -> float:
        """The share of requests that met their targets; lost and rejected ones count as misses."""
        came = len(self.served) + len(self.lost) + len(self.rejected)
        return sum(r.within_slo for r in self.served) / came if came else 1.0

    @property
    def goodput_rps(self) -> float:
        """Requests served within their targets, per second."""
        good = sum(r.within_slo for r in self.served)
        return good / self.makespan_s if self.makespan_s > 0 else 0.0


def free_block_moments(sums: Iterable[FreeBlocks]) -> tuple[float, float]:
    """Mean and variance of free blocks over the time that `sums` cover; zeros if that is none."""
    parts = list(sums)
    seconds = sum(part.seconds for part in parts)
    if seconds <= 0:
        return 0.0, 0.0
    mean = sum(part.blocks_s for part in parts) / seconds
    square = sum(part.squared_blocks_s for part in parts) / seconds
    return mean, max(0.0, square - mean * mean)
