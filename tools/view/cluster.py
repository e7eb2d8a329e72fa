"""The reports of several scheduler replicas as one: what each engine does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Any

Report = dict[str, Any]


@dataclass(slots=True)
class EngineView:
    """One engine, as all replicas together see it."""

    name: str
    url: str = ""
    models: set[str] = field(default_factory=set)
    emulated: bool = False
    up: bool = False
    """Whether at least one replica finds it healthy."""
    outstanding: int = 0
    placed: int = 0
    """All requests placed there so far."""
    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None
    calibration_steps: int | None = None
    unpredicted: str = ""
    """Why it is not predicted; empty if it is predicted, or if the reason is not known."""
    approximations: Sequence[str] = ()
    """What it does that predictions do not model."""
    ttft_s: list[float] = field(default_factory=list)
    """TTFTs of the last minute's answers; the three lists below have the same order."""
    predicted_ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    predicted_e2e_s: list[float] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """Add what one replica reports about it."""
        self.url = report.get("url", "")  # only for admins
        self.models.update(report["model_names"])
        self.emulated |= bool(report["emulated"])
        self.up |= bool(report["healthy"])
        self.outstanding += report["outstanding"]
        self.placed += report["dispatched_total"]
        self.unpredicted = self.unpredicted or report.get("unpredicted", "")
        self.approximations = self.approximations or report.get("approximations", ())
        if report["running"] is not None:  # this replica follows its predictor
            self.running, self.waiting = report["running"], report["waiting"]
            self.kv_used_ratio = report["kv_used_ratio"]
            self.calibration_steps = report["calibration_steps"]
        for name in ("ttft_s", "predicted_ttft_s", "e2e_s", "predicted_e2e_s"):
            getattr(self, name).extend(report["last_minute"][name])


@dataclass(slots=True)
class ClusterView:
    """A cluster, as all of its schedulers together see it."""

    versions: set[str] = field(default_factory=set)
    """Releases of the schedulers; there are several during an upgrade."""
    policies: set[str] = field(default_factory=set)
    replicas: list[str] = field(default_factory=list)
    requests: int = 0
    """Accepted so far, by all replicas."""
    in_progress: int = 0
    engines: dict[str, EngineView] = field(default_factory=dict)

    @property
    def placed(self) -> int:
        return sum(engine.placed for engine in self.engines.values())


def merged(reports: Iterable[Report]) -> ClusterView:
    """All reports together; KeyError or TypeError if one is not a scheduler's."""
    view = ClusterView()
    for report in reports:
        view.versions.add(report["version"])
        view.policies.add(report["policy"])
        view.replicas.append(report["replica_id"])
        view.requests += report["requests_total"]
        view.in_progress += report["in_progress"]
        for instance in report["instances"]:
            name = instance["instance_id"]
            view.engines.setdefault(name, EngineView(name)).add(instance)
    return view


def ttft_quantile(engines: Iterable[EngineView], level: float) -> float | None:
    """A quantile of TTFT of the last minute's streams in seconds; None if there were none."""
    known = sorted(seconds for engine in engines for seconds in engine.ttft_s if seconds > 0)
    return known[ceil(level * len(known)) - 1] if known else None


def medians(predicted: Sequence[float], actual: Sequence[float]) -> tuple[float, float] | None:
    """Medians of predicted and actual seconds where both are known; None without any."""
    known = pairs(predicted, actual)
    return (median(p for p, _ in known), median(a for _, a in known)) if known else None


def median_error(predicted: Sequence[float], actual: Sequence[float]) -> float | None:
    """The median of |predicted - actual| / actual, where both are known; None without any."""
    known = pairs(predicted, actual)
    return median(abs(p / a - 1) for p, a in known) if known else None


def pairs(predicted: Sequence[float], actual: Sequence[float]) -> list[tuple[float, float]]:
    """Predicted and actual seconds where both are known: neither is 0."""
    return [(p, a) for p, a in zip(predicted, actual, strict=True) if p > 0 and a > 0]
