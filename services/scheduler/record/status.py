"""What a replica says of itself and its instances, at `/status` and to whoever scrapes."""

import asyncio
import time
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from foretell.model import LengthEstimate, Prediction, RequestSpec
from foretell.services.scheduler.placing.attempt import Traces
from foretell.services.scheduler.placing.instance import Instance
from foretell.services.scheduler.placing.placer import Placer
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.telemetry import SchedulerMetrics

_NEXT = RequestSpec("", 256, 0, LengthEstimate(256.0, source="hint"))


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
    """What is predicted of a request that would come now, by instance, of those that are followed;
    None where nothing new is known."""
    now_s = asyncio.get_running_loop().time()
    return {
        each.config.instance_id: predictors.predict_one(_NEXT, each.config.instance_id, now_s)
        for each in predictors.followed
    }


WINDOW_S = 60.0
"""Older answers are not told of."""


class Latencies(NamedTuple):
    """One answer, in seconds from its placement; 0: not known."""

    ttft_s: float
    predicted_ttft_s: float
    e2e_s: float
    predicted_e2e_s: float


def instance_statuses(instances: Sequence[Instance], placer: Placer) -> list[dict[str, object]]:
    predicted = predicted_now(placer.predictors)
    answers = _last_minute(placer.traces)
    return [
        {
            **_dispatched(instance, placer),
            **_engine(predicted.get(instance.config.instance_id)),
            "last_minute": _columns(answers.get(instance.config.instance_id, [])),
        }
        for instance in instances
    ]


def _dispatched(instance: Instance, placer: Placer) -> dict[str, object]:
    outstanding, dispatched = placer.counts(instance.config.instance_id)
    return {
        "instance_id": instance.config.instance_id,
        "url": instance.config.url,
        "healthy": instance.healthy,
        "draining": instance.config.draining,
        "emulated": instance.emulated,
        "calibration_steps": placer.predictors.calibration_steps(instance.config.instance_id),
        "approximations": placer.predictors.approximations(instance.config.instance_id),
        "unpredicted": placer.predictors.unpredicted(instance),
        "model_names": sorted(instance.model_names),
        "outstanding": outstanding,
        "dispatched_total": dispatched,
    }


def _engine(prediction: Prediction | None) -> dict[str, object]:
    if prediction is None:
        names = ("running", "waiting", "max_num_seqs", "kv_used_ratio", "predicted_ttft_s")
        return dict.fromkeys(names)
    load = prediction.load
    return {
        "running": load.running,
        "waiting": load.waiting + load.reserved,
        "max_num_seqs": load.max_num_seqs,
        "kv_used_ratio": round(load.used_blocks / max(1, load.total_blocks), 4),
        "predicted_ttft_s": round(prediction.ttft_s, 6),
    }


def _last_minute(traces: Traces) -> dict[str, list[Latencies]]:
    """The latencies of the answers of the last minute, by instance, oldest first."""
    since_unix_s = time.time() - WINDOW_S
    found: dict[str, list[Latencies]] = {}
    ended = [
        attempt
        for trace in traces.latest()
        for attempt in (trace.attempts if trace.generates else ())
        if attempt.settled and attempt.answered and attempt.ended_unix_s >= since_unix_s
    ]
    for each in sorted(ended, key=lambda attempt: attempt.ended_unix_s):
        predicted = (each.prediction.ttft_s, each.prediction.e2e_s) if each.prediction else (0, 0)
        if not each.continued and all(map(isfinite, predicted)):
            latencies = Latencies(each.ttft_s, predicted[0], each.e2e_s, predicted[1])
            found.setdefault(each.instance_id, []).append(latencies)
    return found


def _columns(answers: Sequence[Latencies]) -> dict[str, list[float]]:
    rounded = [[round(seconds, 4) for seconds in answer] for answer in answers]
    columns = zip(*rounded, strict=True) if rounded else ([] for _ in Latencies._fields)
    return {name: list(each) for name, each in zip(Latencies._fields, columns, strict=True)}
