"""What a replica says of itself and its instances at `/status`."""

from collections.abc import Sequence

from foretell.model import Prediction
from foretell.services.scheduler.placing.placer import Placer
from foretell.services.scheduler.placing.pool import Instance
from foretell.services.scheduler.record.gauges import foretold_now
from foretell.services.scheduler.record.recent import Latencies, Recent


def instance_statuses(
    instances: Sequence[Instance], placer: Placer, recent: Recent
) -> list[dict[str, object]]:
    """An object for each instance."""
    foretold = foretold_now(placer.predictors)
    answers = recent.by_instance()
    return [
        {
            **_dispatched(instance, placer),
            **_engine(foretold.get(instance.config.instance_id)),
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
    """What its predictor shows of the engine; None where this replica does not follow it."""
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


def _columns(answers: Sequence[Latencies]) -> dict[str, list[float]]:
    rounded = [[round(seconds, 4) for seconds in answer] for answer in answers]
    columns = zip(*rounded, strict=True) if rounded else ([] for _ in Latencies._fields)
    return {name: list(each) for name, each in zip(Latencies._fields, columns, strict=True)}
