"""The bridge to Prometheus: what declares a metric also describes it in the catalogue.

Labels are `model_name`, `instance_id`, `policy` and `engine` ("vllm" or "emulated": an emulated
engine is no evidence of accuracy), `class` ("online" or "offline"), `tenant`, and reasons; never a
request id.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from foretell import __version__

ERROR_BUCKETS_RATIO = (
    -1.0, -0.75, -0.5, -0.25, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
ERROR = "(predicted - actual) / actual"


M = TypeVar("M", Counter, Histogram)
MOST_SERIES = 10_000
"""Sets of labels that are remembered for a metric."""


def _remembered(metric: M) -> M:
    """The metric with `labels` that remembers each set: to look one up takes longer than to count.
    Its series must not be removed."""
    metric.labels = lru_cache(MOST_SERIES)(metric.labels)  # type: ignore[method-assign]
    return metric


class _Counter(Counter):
    """One whose series has no exemplars: each request counts several times."""

    def inc(self, amount: float = 1, exemplar: None = None) -> None:  # type: ignore[override]
        """Count `amount`; ValueError where it is negative."""
        if amount < 0:
            raise ValueError("counters only grow")
        self._value.inc(amount)


class _Histogram(Histogram):
    """One without exemplars whose buckets are found by bisection."""

    def observe(self, amount: float, exemplar: None = None) -> None:  # type: ignore[override]
        """Count `amount` in its bucket."""
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the catalogue."""

    name: str
    """What a query calls it; a histogram has `_bucket`, `_count` and `_sum`."""
    kind: str
    """"counter", "gauge" or "histogram"."""
    unit: str
    labels: tuple[str, ...]
    meaning: str
    formula: str = ""
    """How it is computed, where it is more than a count or a time."""


class Declared:
    """The metrics of one process, which are in the catalogue because they are made here."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.catalogue: list[Metric] = []

    def counter(self, name: str, unit: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        """A number that only grows while the process lives."""
        self.catalogue.append(Metric(name, "counter", unit, tuple(labels), meaning))
        return _remembered(_Counter(name, meaning, labels, registry=self.registry))

    def gauge(
        self, name: str, unit: str, meaning: str, labels: Sequence[str] = (), formula: str = ""
    ) -> Gauge:
        """A number that is what it is at the moment."""
        self.catalogue.append(Metric(name, "gauge", unit, tuple(labels), meaning, formula))
        return Gauge(name, meaning, labels, registry=self.registry)

    def histogram(
        self,
        name: str,
        unit: str,
        meaning: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        formula: str = "",
    ) -> Histogram:
        """A distribution; `buckets` are upper bounds, ascending."""
        self.catalogue.append(Metric(name, "histogram", unit, tuple(labels), meaning, formula))
        return _remembered(
            _Histogram(name, meaning, labels, buckets=buckets, registry=self.registry)
        )

    def process(self) -> None:
        """Which release runs, and what the operating system knows of the process."""
        release = self.gauge(
            "foretell_build_info", "boolean", "1; the label is the release that runs.", ("version",)
        )
        release.labels(__version__).set(1)
        for family in ProcessCollector(registry=self.registry).collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            unit = next((u for u in ("bytes", "seconds") if f"_{u}" in name), "files")
            self.catalogue.append(Metric(name, family.type, unit, (), family.documentation))
