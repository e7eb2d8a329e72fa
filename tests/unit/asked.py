"""What a scheduler predicts that follows one predictor, with all that the predictor knows."""

from foretell.engine import SnapshotPredictor
from foretell.engine.published import Published
from foretell.engine.publishing import PrefixNews
from foretell.engine.snapshot_cache import SnapshotCache
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import StepTimeModel
from foretell.model import Prediction, RequestSpec

_OPTIONS = {"announced_only": False, "externality": False, "with_quantiles": True}


def following(
    predictor: SnapshotPredictor, step_time: StepTimeModel, now_s: float, error: float = 0.0
) -> SnapshotCache:
    """Return a cache with one engine, "e", whose predictor's message it has just received.

    `error`: the relative standard deviation that is common to the times of all steps.
    """
    learnt = (error * error, 0.0), 0
    if isinstance(step_time, OnlineStepTime):
        learnt = step_time.variances, step_time.steps
    snapshot = predictor.publish(step_time, now_s, *learnt)
    assert snapshot is not None
    silent_s = predictor.silent_s(step_time, now_s)
    message = Published(now_s, predictor.heard_unix_s, snapshot, silent_s=silent_s)
    cache = SnapshotCache(predictor.length_row)
    cache.follow("e").hear(PrefixNews().add(message, predictor.ledger.prefixes), now_s)
    return cache


def foretold(
    cache: SnapshotCache, request: RequestSpec, now_s: float, **options: bool
) -> Prediction:
    """Predict `request`, dispatched now; the options are those of `SnapshotCache.predict`."""
    (found,) = cache.predict(["e"], request, now_s, **(_OPTIONS | options))
    return found


def asked(
    predictor: SnapshotPredictor,
    request: RequestSpec,
    step_time: StepTimeModel,
    now_s: float,
    *,
    error: float = 0.0,
    **options: bool,
) -> Prediction:
    """Like `foretold`, with a cache that has just received the engine's snapshot."""
    return foretold(following(predictor, step_time, now_s, error), request, now_s, **options)
