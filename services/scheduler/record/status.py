"""What a replica reports about itself and its instances: at `/status`, and in its metrics."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from math import isfinite

from foretell.model import LengthEstimate, Prediction, RequestSpec
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing.attempt import Traces
from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.services.scheduler.placing.placer import Placer
from foretell.services.scheduler.placing.predictors import Predictors

_NEXT = RequestSpec("", 256, 0, LengthEstimate(256.0, source="hint"))


def show_instances(
    metrics: SchedulerMetrics, predictors: Predictors, instances: Iterable[PoolInstance]
) -> None:
    """Set the gauges of followed instances, and `unpredicted` of any instance with a reason."""
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
    for each in instances:
        if reason := predictors.unpredicted(each):
            metrics.unpredicted.labels(each.config.instance_id, reason).set(1)
    for instance_id, prediction in predicted_now(predictors).items():
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


def predicted_now(predictors: Predictors) -> dict[str, Prediction | None]:
    """The prediction for a request that would arrive now, by followed instance; None without a
    fresh snapshot."""
    now_s = asyncio.get_running_loop().time()
    return {
        each.config.instance_id: predictors.predict_one(_NEXT, each.config.instance_id, now_s)
        for each in predictors.followed
    }


WINDOW_S = 60.0
"""Older answers are not reported."""


_LATENCIES = ("ttft_s", "predicted_ttft_s", "e2e_s", "predicted_e2e_s")
"""Latencies of an answer, in seconds from its placement; 0: not known."""


def instance_statuses(placer: Placer, instances: Iterable[PoolInstance]) -> list[dict[str, object]]:
    predicted, answers = predicted_now(placer.predictors), _last_minute(placer.traces)
    return [_status(placer, each, predicted, answers) for each in instances]


def _status(
    placer: Placer,
    instance: PoolInstance,
    predicted: Mapping[str, Prediction | None],
    answers: Mapping[str, dict[str, list[float]]],
) -> dict[str, object]:
    instance_id = instance.config.instance_id
    outstanding, dispatched = placer.counts(instance_id)
    prediction = predicted.get(instance_id)
    load = prediction and prediction.load
    return {
        "instance_id": instance_id,
        "url": instance.config.url,
        "healthy": instance.healthy,
        "draining": instance.config.draining,
        "emulated": instance.emulated,
        "calibration_steps": prediction and prediction.calibration_steps,
        "approximations": prediction.approximations if prediction else (),
        "unpredicted": placer.predictors.unpredicted(instance),
        "model_names": sorted(instance.model_names),
        "outstanding": outstanding,
        "dispatched_total": dispatched,
        "running": load and load.running,
        "waiting": load and load.waiting + load.reserved,
        "max_num_seqs": load and load.max_num_seqs,
        "kv_used_ratio": load and round(load.used_blocks / max(1, load.total_blocks), 4),
        "predicted_ttft_s": prediction and round(prediction.ttft_s, 6),
        "last_minute": answers.get(instance_id) or {name: [] for name in _LATENCIES},
    }


def _last_minute(traces: Traces) -> dict[str, dict[str, list[float]]]:
    """The latencies of the last minute's answers, by instance, with a column for each of
    `_LATENCIES`; oldest first."""
    since_unix_s = time.time() - WINDOW_S
    ended = [
        attempt
        for trace in traces.latest()
        for attempt in (trace.attempts if trace.generates else ())
        if attempt.settled and attempt.answered and attempt.ended_unix_s >= since_unix_s
    ]
    found: dict[str, dict[str, list[float]]] = {}
    for each in sorted(ended, key=lambda attempt: attempt.ended_unix_s):
        ttft_s, e2e_s = (
            (each.prediction.ttft_s, each.prediction.e2e_s) if each.prediction else (0, 0)
        )
        if not each.continued and isfinite(ttft_s + e2e_s):
            columns = found.setdefault(each.instance_id, {name: [] for name in _LATENCIES})
            latencies = (each.ttft_s, ttft_s, each.e2e_s, e2e_s)
            for column, seconds in zip(columns.values(), latencies, strict=True):
                column.append(round(seconds, 4))
    return found
