"""What a request is, and how long its next token may take."""

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
"""What engines that co-schedule say of themselves: the twin does not know what prompts share."""


class JobClass(Enum):
    """Whether somebody waits for each token, or only for the whole."""

    ONLINE = "online"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Targets:
    """What an online request asks for; `inf` where it asks for nothing."""

    ttft_s: float = inf
    tpot_s: float = inf

    def slack_s(self, waited_s: float, tokens: int) -> float:
        """Seconds until the next token is due (`kernel.offline.slack_s`)."""
        return slack_s(self.ttft_s, self.tpot_s, waited_s, tokens)

    @property
    def told_s(self) -> tuple[float, float]:
        """TTFT and TPOT as snapshots and twins have them: 0 where there is none."""
        return _or_0(self.ttft_s), _or_0(self.tpot_s)


@dataclass(frozen=True, slots=True)
class Job:
    """A request as far as co-scheduling cares."""

    job_class: JobClass
    targets: Targets

    def begun(self, ttft_s: float) -> "Job":
        """With its first token out after `ttft_s`, from which the others are due."""
        return replace(self, targets=replace(self.targets, ttft_s=ttft_s))

    def priority(self, asked: int) -> int:
        """The priority in an engine that tells the classes apart, of one that asks for `asked`."""
        if self.job_class is JobClass.OFFLINE:
            return OFFLINE_PRIORITY
        return min(asked, OFFLINE_PRIORITY - 1)


_ONLINE, _OFFLINE = Job(JobClass.ONLINE, Targets()), Job(JobClass.OFFLINE, Targets())


def job_of(fields: Mapping[str, object]) -> Job:
    """What `vllm_xargs` say. Whatever is not understood is online and asks for nothing."""
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
