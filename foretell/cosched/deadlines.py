"""Whether a request is online or offline, and how long its next token may take."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import inf, isfinite

from foretell.kernel.offline import slack_s
from foretell.model import OFFLINE_PRIORITY

CLASS_FIELD = "class"
TTFT_FIELD = "slo_ttft_ms"
TPOT_FIELD = "slo_tpot_ms"
"""Fields of a request's `vllm_xargs`."""
OFFLINE_APART = "which offline request is next"
"""An approximation that co-scheduling engines state: the twin does not know shared prefixes."""


class JobClass(Enum):
    """Whether someone waits for each token, or only for the whole answer."""

    ONLINE = "online"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Targets:
    """The latency targets of an online request; `inf`: no target."""

    ttft_s: float = inf
    tpot_s: float = inf

    def slack_s(self, waited_s: float, tokens: int) -> float:
        """Return the seconds until the next token is due (`kernel.offline.slack_s`)."""
        return slack_s(self.ttft_s, self.tpot_s, waited_s, tokens)

    @property
    def or_zero_s(self) -> tuple[float, float]:
        """The TTFT and TPOT targets as snapshots and twins have them: 0 for no target."""
        return _or_0(self.ttft_s), _or_0(self.tpot_s)


@dataclass(frozen=True, slots=True)
class Job:
    """What matters of a request for co-scheduling."""

    job_class: JobClass
    targets: Targets

    def begun(self, ttft_s: float) -> "Job":
        """Return it with the actual TTFT as its target, from which later tokens are due."""
        return replace(self, targets=replace(self.targets, ttft_s=ttft_s))

    def priority(self, asked: int) -> int:
        """Return its priority in an engine that co-schedules; `asked`: what the client asks for."""
        if self.job_class is JobClass.OFFLINE:
            return OFFLINE_PRIORITY
        return min(asked, OFFLINE_PRIORITY - 1)


_ONLINE, _OFFLINE = Job(JobClass.ONLINE, Targets()), Job(JobClass.OFFLINE, Targets())


def job_of(fields: Mapping[str, object]) -> Job:
    """Read a job from `vllm_xargs`. What is not understood means online and no target."""
    if fields.get(CLASS_FIELD) == JobClass.OFFLINE.value:
        return _OFFLINE
    ttft_s, tpot_s = _seconds(fields.get(TTFT_FIELD)), _seconds(fields.get(TPOT_FIELD))
    if ttft_s == tpot_s == inf:
        return _ONLINE
    return Job(JobClass.ONLINE, Targets(ttft_s, tpot_s))


def _or_0(target_s: float) -> float:
    return target_s if target_s < inf else 0.0


def _seconds(value: object) -> float:
    try:
        seconds = float(value) / 1000.0  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return inf
    return seconds if isfinite(seconds) and seconds > 0 else inf
