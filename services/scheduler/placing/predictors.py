"""The predictors that a scheduler follows, and what it tells them of its requests."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from heapq import nsmallest
from math import inf
from typing import Unpack

from foretell.engine.doubt import DOUBTED
from foretell.engine.predictor import Lane
from foretell.engine.seen_limits import OBSERVED
from foretell.engine.snapshot_cache import SnapshotCache
from foretell.kernel.compiled import ImpossibleState
from foretell.length.distribution import knots
from foretell.model import Prediction, RequestSpec
from foretell.placement import events
from foretell.placement.cached import CachedPredictions
from foretell.placement.candidates import MOST_FOLLOWED
from foretell.placement.ports import Predicted, Wait, Wanted
from foretell.policy.trust import CALIBRATED_STEPS
from foretell.services.process.logs import all_about
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing.following import Following, Watch
from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.services.scheduler.placing.pool import Pool
from foretell.v1 import predictor_pb2

logger = logging.getLogger(__name__)

_SEEN_WITHIN_S = 5.0  # no client waits for it
_MEET_AT = 3
"""Predictors that every replica follows, the first by instance name: replicas send messages to each
other through them."""
_SWAP_EVERY = 8
"""In a larger pool, one followed predictor is replaced after so many placements."""
_LEAST_SWAP_S = 0.05


class Predictors:
    """The predictors of the instances in `pool`: their latest snapshots, and predictions from them.

    Implements `foretell.placement.ports.Predict`.
    """

    def __init__(
        self,
        pool: Pool,
        metrics: SchedulerMetrics,
        *,
        follows: bool,
        listener: Callable[[events.InstanceFollowed], None],
        random: Callable[[], float],
    ) -> None:
        """`follows`: whether to follow predictors at all. `listener` gets an event whenever
        snapshots of an instance begin or end. `random` draws from [0, 1)."""
        self._pool = pool
        self._follows = follows
        self._listener = listener
        self._random = random
        self._placed = 0
        self._swapped_s = 0.0
        self._cache = SnapshotCache(knots)
        self._cached = CachedPredictions(self._cache, time.perf_counter)
        self._refused = metrics.snapshots_refused
        self._followed: dict[str, Following] = {}
        self._withheld: tuple[str, dict[str, Prediction]] = "", {}
        self.passed_on: Callable[[predictor_pb2.Spending], None] = lambda spending: None
        """Called with messages that another replica sends to all."""
        self._clock = asyncio.get_running_loop().time

    def follow(self, instance_id: str) -> None:
        """Follow the predictor of an instance, unless too many are followed."""
        instance = self._pool.instances.get(instance_id)
        if not self._follows or instance_id in self._followed:
            return
        if instance is None or not instance.config.predictor:
            return
        if len(self._followed) >= MOST_FOLLOWED:
            meeting = self._meeting()
            if instance_id not in meeting:
                return
            self.leave(next(each for each in self._followed if each not in meeting))
        following = Following(
            instance.config.predictor,
            self._pool.traffic,
            self._cache.follow(instance_id),
            lambda reason: self._refused.labels(instance_id, reason).inc(),
            lambda shown: self._listener(events.InstanceFollowed(instance_id, shown)),
        )
        following.passed_on = self.passed_on
        self._followed[instance_id] = following
        following.start()

    def _meeting(self) -> list[str]:
        return nsmallest(min(_MEET_AT, MOST_FOLLOWED // 2), self._pool.instances)

    def ways(self) -> list[Callable[[predictor_pb2.Spending], None]]:
        """Functions that send to the other replicas, which may hear a message more than once."""
        is_open = (name for name, each in self._followed.items() if each.is_open)
        return [self._followed[name].pass_on for name in nsmallest(_MEET_AT, is_open)]

    def leave(self, instance_id: str) -> None:
        """Stop following the predictor of an instance."""
        following = self._followed.pop(instance_id, None)
        if following is not None:
            following.stop()
            self._cache.leave(instance_id)
            self._listener(events.InstanceFollowed(instance_id, followed=False))

    def worked_s(self, instance_id: str) -> float:
        """When the engine's last known step was made, on the event loop's clock; -inf if its
        predictor is not followed."""
        following = self._followed.get(instance_id)
        return following.engine.worked_s if following is not None else -inf

    def close(self) -> None:
        """Stop following all predictors."""
        for instance_id in list(self._followed):
            self.leave(instance_id)

    @property
    def followed(self) -> list[PoolInstance]:
        """The instances whose predictors are followed."""
        found = self._pool.instances
        return [found[each] for each in self._followed if each in found]

    def unpredicted(self, instance: PoolInstance) -> str:
        """Why nothing is predicted for an instance, as far as that is known; otherwise ""."""
        if not instance.config.predictor:
            return "it has no predictor: placed by what is outstanding"
        following = self._followed.get(instance.config.instance_id)
        if following is None:
            return ""
        return DOUBTED if following.doubt.is_doubted else following.unpredicted

    def predict(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        now_s: float,
        **wanted: Unpack[Wanted],
    ) -> Predicted:
        """See `ports.Predict`. A snapshot that cannot be predicted from counts as missing."""
        predicted = Predicted()
        with self._predicting(instance_ids, spec.x_request_id):
            predicted = self._cached.predict(spec, instance_ids, now_s, **wanted)
        return self._without_doubted(spec.request_id, predicted)

    def _without_doubted(self, key: str, predicted: Predicted) -> Predicted:
        """Remove the predictions for doubted engines, and keep them for `withheld` until the next
        call of `predict`."""
        found = {
            each.instance_id: each.prediction
            for each in predicted.answers
            if each.prediction is not None and self._is_doubted(each.instance_id)
        }
        self._withheld = key, found
        if not found:
            return predicted
        answers = [
            each._replace(prediction=None, is_doubted=True) if each.instance_id in found else each
            for each in predicted.answers
        ]
        return predicted._replace(answers=answers)

    def withheld(self, key: str, instance_id: str) -> Prediction | None:
        """The prediction that was not trusted, for a request that is just being placed there."""
        last, found = self._withheld
        return found.get(instance_id) if key == last else None

    def judge(
        self,
        instance: PoolInstance,
        prediction: Prediction,
        ttft_s: float,
        e2e_s: float,
        tokens: float,
    ) -> None:
        """Compare a prediction with the actual values; 0: not known. Only observed engines can
        become doubted: others publish their state themselves. Predictions made before step times
        were calibrated say nothing about current ones, and are ignored."""
        following = self._following(instance)
        is_observed = OBSERVED in prediction.approximations
        is_calibrated = prediction.calibration_steps >= CALIBRATED_STEPS
        if following is not None and is_observed and is_calibrated:
            following.doubt.add(prediction, ttft_s, e2e_s, tokens)

    def _is_doubted(self, instance_id: str) -> bool:
        following = self._followed.get(instance_id)
        return following is not None and following.doubt.is_doubted

    def wait(self, spec: RequestSpec, instance_id: str, now_s: float) -> Wait:
        """See `ports.Predict`."""
        found = Wait()
        with self._predicting((instance_id,), spec.x_request_id):
            found = self._cached.wait(spec, instance_id, now_s)
        return found._replace(wait_s=None) if self._is_doubted(instance_id) else found

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        """See `ports.Predict`."""
        with self._predicting((instance_id,), spec.x_request_id):
            return self._cached.predict_one(spec, instance_id, now_s)
        return None

    def lanes(self) -> dict[str, list[Lane]]:
        """The expected course of each request, for followed instances with a fresh snapshot."""
        with self._predicting(self._followed):
            now_s = self._clock()
            fresh = self._cache.fresh(list(self._followed), now_s)
            return {instance_id: self._cache.lanes(instance_id, now_s) for instance_id in fresh}
        return {}

    @contextmanager
    def _predicting(self, instance_ids: Collection[str], request_id: str = "") -> Iterator[None]:
        """A block that predicts, with the learned answer delay of each engine. If a snapshot has an
        impossible state, that is logged and the block ends early."""
        for instance_id in instance_ids:
            if (following := self._followed.get(instance_id)) is not None:
                following.engine.answer_delay_s = self._pool.instances[instance_id].answer_delay_s
        with all_about(request_id):
            try:
                yield
            except ImpossibleState:
                logger.exception("predicting from snapshots failed")

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        """See `ports.Predict`. On return the notice is on its way to the predictor."""
        following = self._followed.get(instance_id)
        self._placed += 1
        if self._placed % _SWAP_EVERY == 0 and len(self._pool.instances) > len(self._followed):
            self._swap()
        if following is not None:
            following.reserve(spec, now_s)

    def revise(self, instance: PoolInstance, spec: RequestSpec) -> None:
        """Send the predictor an update of a request that was reserved before."""
        following = self._following(instance)
        if following is not None:
            following.revise(spec)

    def watch(self, instance: PoolInstance, spec: RequestSpec) -> Watch | None:
        """See `Following.watch`."""
        following = self._following(instance)
        return None if following is None else following.watch(spec)

    def _swap(self) -> None:
        """In a pool too large to follow all, replace the fullest instance by a random one.

        The others stay followed, so each placement chooses among good ones and new ones
        (Mitzenmacher, Prabhakar and Shah, "Load balancing with memory", FOCS 2002).
        """
        now_s = self._clock()
        if len(self._followed) < MOST_FOLLOWED:
            return  # the others have no predictor
        if now_s < self._swapped_s + _LEAST_SWAP_S:
            return
        names = list(self._pool.instances)
        drawn = names[int(self._random() * len(names))]
        instance = self._pool.instances[drawn]
        if drawn in self._followed or not instance.healthy or not instance.config.predictor:
            return
        self._swapped_s = now_s
        fresh = set(self._cache.fresh(list(self._followed), now_s))
        others = self._followed.keys() - self._meeting()
        self.leave(max(others, key=lambda each: _fullness(self._cache, each, fresh)))
        self.follow(drawn)

    async def complete(
        self, instance: PoolInstance, spec: RequestSpec, *, answered: bool, output_tokens: int = 0
    ) -> predictor_pb2.Seen | None:
        """Release the reservation of a request that has ended; return what the predictor saw of
        it, None if that is not known. `output_tokens`: 0 if not known."""
        following = self._following(instance)
        if following is None:
            return None
        seen = following.complete(spec, answered=answered, output_tokens=output_tokens)
        if seen is None:
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(_SEEN_WITHIN_S):
                return await seen
        return None

    def _following(self, instance: PoolInstance) -> Following | None:
        """The `Following` of this instance's predictor; None if it is not followed."""
        instance_id = instance.config.instance_id
        if self._pool.instances.get(instance_id) is not instance:
            return None  # it was removed, and another one may have its id
        return self._followed.get(instance_id)


def _fullness(cache: SnapshotCache, instance_id: str, fresh: Collection[str]) -> float:
    """Requests per seat (`max_num_seqs`); infinite without a fresh snapshot."""
    if instance_id not in fresh:
        return inf
    load = cache.load(instance_id)
    return load.requests / load.max_num_seqs
