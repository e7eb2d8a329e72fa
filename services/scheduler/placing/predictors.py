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
from foretell.placement.ports import Predicted, Wait, Wanted
from foretell.policy.trust import CALIBRATED_STEPS
from foretell.services.process.logs import all_about
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing.following import Following, Watch
from foretell.services.scheduler.placing.instance import Instance
from foretell.services.scheduler.placing.pool import Pool
from foretell.v1 import predictor_pb2

logger = logging.getLogger(__name__)

_SEEN_WITHIN_S = 5.0  # nobody waits for it
MOST_FOLLOWED = 64
"""Predictors that are followed at most: of larger pools others in turn."""
_MEET_AT = 3
"""Predictors, the first by the names of their instances, that every replica follows: by way of them
replicas tell each other."""
_SWAP_EVERY = 8
"""Placements after which another predictor is followed in place of one, in a larger pool."""
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
        """Without `follows` none is followed. `listener` gets each that is; `random` draws from
        [0, 1)."""
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
        """Gets what another replica sends to all."""
        self._clock = asyncio.get_running_loop().time

    def follow(self, instance_id: str) -> None:
        """Follow the predictor of that instance from now on, unless there are too many."""
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
            lambda shown: self._shown(instance_id, shown),
        )
        following.passed_on = self.passed_on
        self._followed[instance_id] = following
        following.start()

    def _meeting(self) -> list[str]:
        return nsmallest(min(_MEET_AT, MOST_FOLLOWED // 2), self._pool.instances)

    def ways(self) -> list[Callable[[predictor_pb2.Spending], None]]:
        """The ways to the other replicas: what goes by all of them, each hears more than once."""
        is_open = (name for name, each in self._followed.items() if each.is_open)
        return [self._followed[name].pass_on for name in nsmallest(_MEET_AT, is_open)]

    def _shown(self, instance_id: str, shown: bool) -> None:
        """Where all can be followed, one that is not must not be left out."""
        if len(self._pool.instances) > MOST_FOLLOWED or not shown:
            self._listener(events.InstanceFollowed(instance_id, shown))

    def leave(self, instance_id: str) -> None:
        """Follow that instance's predictor no longer."""
        following = self._followed.pop(instance_id, None)
        if following is not None:
            following.stop()
            self._cache.leave(instance_id)
            self._shown(instance_id, shown=False)

    def worked_s(self, instance_id: str) -> float:
        """When that engine was last heard to have made a step, on the event loop's clock; -inf
        where its predictor is not followed."""
        following = self._followed.get(instance_id)
        return following.engine.worked_s if following is not None else -inf

    def close(self) -> None:
        """Follow nobody any longer."""
        for instance_id in list(self._followed):
            self.leave(instance_id)

    @property
    def followed(self) -> list[Instance]:
        """The instances whose predictors are to tell by themselves what they know."""
        found = self._pool.instances
        return [found[each] for each in self._followed if each in found]

    def unpredicted(self, instance: Instance) -> str:
        """Why nothing is predicted of it, as far as that is known; else empty."""
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
        """As `ports.Predict` has it; what cannot be predicted from is as good as missing."""
        predicted = Predicted()
        with self._predicting(instance_ids, spec.x_request_id):
            predicted = self._cached.predict(spec, instance_ids, now_s, **wanted)
        return self._without_doubted(spec.request_id, predicted)

    def _without_doubted(self, key: str, predicted: Predicted) -> Predicted:
        """The same without the predictions that are not trusted, which are remembered until
        the next placement."""
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
        """What was predicted of a request that is just being placed there, and not trusted."""
        last, found = self._withheld
        return found.get(instance_id) if key == last else None

    def judge(
        self, instance: Instance, prediction: Prediction, ttft_s: float, e2e_s: float, tokens: float
    ) -> None:
        """What came of a prediction for an engine; 0: not known. Only those of engines that are
        observed may come to be doubted: others tell themselves how they are. What was predicted
        before its step times were learnt says nothing of what is predicted now."""
        following = self._following(instance)
        is_observed = OBSERVED in prediction.approximations
        is_calibrated = prediction.calibration_steps >= CALIBRATED_STEPS
        if following is not None and is_observed and is_calibrated:
            following.doubt.add(prediction, ttft_s, e2e_s, tokens)

    def _is_doubted(self, instance_id: str) -> bool:
        following = self._followed.get(instance_id)
        return following is not None and following.doubt.is_doubted

    def wait(self, spec: RequestSpec, instance_id: str, now_s: float) -> Wait:
        """As `ports.Predict` has it."""
        found = Wait()
        with self._predicting((instance_id,), spec.x_request_id):
            found = self._cached.wait(spec, instance_id, now_s)
        return found._replace(wait_s=None) if self._is_doubted(instance_id) else found

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        """As `ports.Predict` has it."""
        with self._predicting((instance_id,), spec.x_request_id):
            return self._cached.predict_one(spec, instance_id, now_s)
        return None

    def lanes(self) -> dict[str, list[Lane]]:
        """What becomes of the requests on each instance that is followed and known."""
        with self._predicting(self._followed):
            now_s = self._clock()
            fresh = self._cache.fresh(list(self._followed), now_s)
            return {instance_id: self._cache.lanes(instance_id, now_s) for instance_id in fresh}
        return {}

    @contextmanager
    def _predicting(self, instance_ids: Collection[str], request_id: str = "") -> Iterator[None]:
        """A block that predicts with how long answers take from each engine to here, as those that
        were relayed show. It ends early where a snapshot is of a state that cannot be."""
        for instance_id in instance_ids:
            if (following := self._followed.get(instance_id)) is not None:
                following.engine.answer_delay_s = self._pool.instances[instance_id].answer_delay_s
        with all_about(request_id):
            try:
                yield
            except ImpossibleState:
                logger.exception("predicting from snapshots failed")

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        """As `ports.Predict` has it; on return the notice is on its way to the predictor."""
        following = self._followed.get(instance_id)
        self._placed += 1
        if self._placed % _SWAP_EVERY == 0 and len(self._pool.instances) > len(self._followed):
            self._swap()
        if following is not None:
            following.reserve(spec, now_s)

    def revise(self, instance: Instance, spec: RequestSpec) -> None:
        """Tell what else is known of a request that was announced."""
        following = self._following(instance)
        if following is not None:
            following.revise(spec)

    def watch(self, instance: Instance, spec: RequestSpec) -> Watch | None:
        """As `Following.watch` has it."""
        following = self._following(instance)
        return None if following is None else following.watch(spec)

    def _swap(self) -> None:
        """In a pool too large to follow all, follow one drawn at random in place of the fullest.

        The others are remembered, so each placement chooses among what was good and what is new
        (Mitzenmacher, Prabhakar and Shah, "Load balancing with memory", FOCS 2002).
        """
        now_s = self._clock()
        if len(self._followed) < MOST_FOLLOWED:
            return  # others have no predictor
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
        self, instance: Instance, spec: RequestSpec, *, answered: bool, output_tokens: int = 0
    ) -> predictor_pb2.Seen | None:
        """The request has ended, with so many tokens, 0: not known; its reservation is released.
        What the predictor saw of it, if that is known."""
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

    def _following(self, instance: Instance) -> Following | None:
        """Who follows this instance's predictor; None where nobody does."""
        instance_id = instance.config.instance_id
        if self._pool.instances.get(instance_id) is not instance:
            return None  # it was removed, and another one may have its id
        return self._followed.get(instance_id)


def _fullness(cache: SnapshotCache, instance_id: str, fresh: Collection[str]) -> float:
    """Requests per seat; of whom nothing new is known, infinitely many."""
    if instance_id not in fresh:
        return inf
    load = cache.load(instance_id)
    return load.requests / load.max_num_seqs
