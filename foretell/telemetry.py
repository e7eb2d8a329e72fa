"""Metrics for Prometheus: declaring a metric also adds it to the catalogue.

Labels are `model_name`, `instance_id`, `policy`, `class` ("online" or "offline"), `tenant`, reasons
and `engine` ("vllm" or "emulated": an emulated engine proves nothing about accuracy). A request id
is never a label.
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
"""The most label sets that are cached for one metric."""


def _remembered(metric: M) -> M:
    """Cache the series of each label set, because the lookup takes longer than the counting.
    Series of the metric must not be removed."""
    metric.labels = lru_cache(MOST_SERIES)(metric.labels)  # type: ignore[method-assign]
    return metric


class _Counter(Counter):
    """A counter without exemplars, which is faster: each request counts several times."""

    def inc(self, amount: float = 1, exemplar: None = None) -> None:  # type: ignore[override]
        """Add `amount`; raises ValueError if it is negative."""
        if amount < 0:
            raise ValueError("counters only grow")
        self._value.inc(amount)


class _Histogram(Histogram):
    """A histogram without exemplars that finds buckets by bisection."""

    def observe(self, amount: float, exemplar: None = None) -> None:  # type: ignore[override]
        """Count `amount` in its bucket."""
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the catalogue."""

    name: str
    """Its name in queries, where a histogram has `_bucket`, `_count` and `_sum` appended."""
    kind: str
    """"counter", "gauge" or "histogram"."""
    unit: str
    labels: tuple[str, ...]
    meaning: str
    formula: str = ""
    """How it is computed; empty for a plain count or time."""


class Declared:
    """Creates the metrics of one process and adds each to the catalogue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.catalogue: list[Metric] = []

    def counter(self, name: str, unit: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        """Create a metric that only grows while the process runs."""
        self.catalogue.append(Metric(name, "counter", unit, tuple(labels), meaning))
        return _remembered(_Counter(name, meaning, labels, registry=self.registry))

    def gauge(
        self, name: str, unit: str, meaning: str, labels: Sequence[str] = (), formula: str = ""
    ) -> Gauge:
        """Create a metric whose value may rise and fall."""
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
        """Create a distribution; `buckets` are upper bounds, ascending."""
        self.catalogue.append(Metric(name, "histogram", unit, tuple(labels), meaning, formula))
        return _remembered(
            _Histogram(name, meaning, labels, buckets=buckets, registry=self.registry)
        )

    def process(self) -> None:
        """Declare the release that runs and the operating system's metrics of the process."""
        release = self.gauge(
            "foretell_build_info", "boolean", "1; the label is the release that runs.", ("version",)
        )
        release.labels(__version__).set(1)
        for family in ProcessCollector(registry=self.registry).collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            unit = next((u for u in ("bytes", "seconds") if f"_{u}" in name), "files")
            self.catalogue.append(Metric(name, family.type, unit, (), family.documentation))
