"""What the instances do at this moment, for whoever scrapes."""

import asyncio

from foretell.model import LengthEstimate, Prediction, RequestSpec
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.telemetry import SchedulerMetrics

_NEXT = RequestSpec("", 256, 0, LengthEstimate(256.0, source="hint"))
"""The request whose latencies are foretold."""


def show_instances(metrics: SchedulerMetrics, predictors: Predictors) -> None:
    """Set the gauges of all instances that are followed; of others nothing is known here."""
    gauges = (
        metrics.followed,
        metrics.running,
        metrics.waiting,
        metrics.kv_used,
        metrics.kv_offline,
        metrics.calibration_steps,
        metrics.approximate,
        metrics.foreseen_ttft,
        metrics.foreseen_e2e,
        metrics.unpredicted,
    )
    for gauge in gauges:
        gauge.clear()
    for instance_id, reason in predictors.all_unpredicted().items():
        metrics.unpredicted.labels(instance_id, reason).set(1)
    for instance_id, prediction in foretold_now(predictors).items():
        metrics.followed.labels(instance_id).set(prediction is not None)
        if prediction is None:
            continue
        load = prediction.load
        metrics.running.labels(instance_id).set(load.running)
        metrics.waiting.labels(instance_id).set(load.waiting + load.reserved)
        total_blocks = max(1, load.total_blocks)
        metrics.kv_used.labels(instance_id).set(load.used_blocks / total_blocks)
        metrics.kv_offline.labels(instance_id).set(load.offline_blocks / total_blocks)
        metrics.calibration_steps.labels(instance_id).set(prediction.calibration_steps)
        for feature in prediction.approximations:
            metrics.approximate.labels(instance_id, feature).set(1)
        metrics.foreseen_ttft.labels(instance_id).set(prediction.ttft_s)
        metrics.foreseen_e2e.labels(instance_id).set(prediction.e2e_s)


def foretold_now(predictors: Predictors) -> dict[str, Prediction | None]:
    """What is foretold of a request that would come now, by instance, of those that are followed;
    None where nothing new is known."""
    now_s = asyncio.get_running_loop().time()
    return {
        each.config.instance_id: predictors.foretold(_NEXT, each.config.instance_id, now_s)
        for each in predictors.followed
    }
