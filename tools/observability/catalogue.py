"""Every metric of every process, as the processes declare them."""

from functools import cache

from prometheus_client import CollectorRegistry

from foretell.services.batch.metrics import BatchMetrics
from foretell.services.predictor.metrics import PredictorMetrics
from foretell.services.provisioner.metrics import ProvisionerMetrics
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.tagger.metrics import TaggerMetrics
from foretell.telemetry import Metric


@cache
def by_process() -> dict[str, list[Metric]]:
    """The metrics that each process exposes, by the name of its scrape job."""
    return {
        "scheduler": SchedulerMetrics(CollectorRegistry()).catalogue,
        "predictor": PredictorMetrics(CollectorRegistry()).catalogue,
        "tagger": TaggerMetrics().catalogue,
        "provisioner": ProvisionerMetrics().catalogue,
        "batch": BatchMetrics().catalogue,
    }


def labels_of(name: str) -> tuple[str, ...]:
    """The labels of a metric; scrapes of engines and predictors add the instance."""
    if name.startswith("vllm:"):
        return ("model_name", "engine", "finished_reason", "instance_id")
    if name in {metric.name for metric in by_process()["predictor"]}:
        return (*catalogue()[name].labels, "instance_id")
    return catalogue()[name].labels


@cache
def catalogue() -> dict[str, Metric]:
    """All metrics by name."""
    return {metric.name: metric for found in by_process().values() for metric in found}
