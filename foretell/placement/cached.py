"""Predictions from a snapshot cache, in the scheduler service and in the simulator."""

from collections.abc import Callable, Sequence
from typing import Unpack

from foretell.engine.snapshot_cache import SnapshotCache
from foretell.model import Prediction, RequestSpec
from foretell.placement.ports import Answer, Predicted, Wait, Wanted
from foretell.policy import Needs


class CachedPredictions:
    """Implements `ports.Predict` except `reserve`. `seconds` is the clock that measures the cost of
    predictions."""

    def __init__(self, cache: SnapshotCache, seconds: Callable[[], float] = lambda: 0.0) -> None:
        self.cache = cache
        self._seconds = seconds

    def predict(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        now_s: float,
        **wanted: Unpack[Wanted],
    ) -> Predicted:
        cache, began_s = self.cache, self._seconds()
        fresh = cache.fresh(instance_ids, now_s)
        if wanted["needs"] is Needs.LOAD or not fresh:
            return Predicted([Answer(i, cache.load(i)) for i in fresh])
        found = cache.predict(
            fresh,
            spec,
            now_s,
            announced_only=True,
            externality=wanted["needs"].externality,
            with_quantiles=wanted["with_quantiles"],
            single=wanted["single"],
        )
        answers = [Answer(i, p.load, p) for i, p in zip(fresh, found, strict=True)]
        took_s = self._seconds() - began_s
        return Predicted(answers, took_s, cache.inputs(fresh, now_s))

    def wait(self, spec: RequestSpec, instance_id: str, now_s: float) -> Wait:
        if not self.cache.fresh((instance_id,), now_s):
            return Wait()
        wait_s = self.cache.wait_s(instance_id, spec, now_s)
        return Wait(wait_s, self.cache.has_begun(instance_id, spec.request_id))

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        if not self.cache.fresh((instance_id,), now_s):
            return None
        (prediction,) = self.cache.predict(
            (instance_id,),
            spec,
            now_s,
            announced_only=False,
            externality=False,
            with_quantiles=True,  # for the median and the P90 that clients get
        )
        return prediction
