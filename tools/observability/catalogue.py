"""Every metric of every process, as the processes declare them."""

from prometheus_client import CollectorRegistry

from foretell.telemetry import Metric, PredictorMetrics, SchedulerMetrics
from services.tagger.metrics import TaggerMetrics


def by_process() -> dict[str, list[Metric]]:
    """The metrics that each process exposes, by the name of its scrape job."""
    return {
        "scheduler": SchedulerMetrics(CollectorRegistry()).catalogue,
        "predictor": PredictorMetrics(CollectorRegistry()).catalogue,
        "tagger": TaggerMetrics().catalogue,
    }


def catalogue() -> dict[str, Metric]:
    """All of them by name."""
    return {metric.name: metric for found in by_process().values() for metric in found}
