"""Every metric of every process, as the processes declare them."""

from prometheus_client import CollectorRegistry

from foretell.services.provisioner.metrics import ProvisionerMetrics
from foretell.services.tagger.metrics import TaggerMetrics
from foretell.telemetry import BatchMetrics, Metric, PredictorMetrics, SchedulerMetrics


def by_process() -> dict[str, list[Metric]]:
    """The metrics that each process exposes, by the name of its scrape job."""
    return {
        "scheduler": SchedulerMetrics(CollectorRegistry()).catalogue,
        "predictor": PredictorMetrics(CollectorRegistry()).catalogue,
        "tagger": TaggerMetrics().catalogue,
        "provisioner": ProvisionerMetrics().catalogue,
        "batch": BatchMetrics().catalogue,
    }


def catalogue() -> dict[str, Metric]:
    """All of them by name."""
    return {metric.name: metric for found in by_process().values() for metric in found}
