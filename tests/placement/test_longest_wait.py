"""For any seed, requests that go last may be overtaken only until their bound.

Each engine serves one request at a time, admits by priority, and its forecasts are exact.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random

import pytest

from foretell.model import LengthEstimate, Load, Prediction, RequestSpec
from foretell.placement import PlacementConfig, PlacementCore, effects, events
from foretell.placement.ports import Answer, Predicted, Wait
from foretell.placement.recall import REVIEW_PAUSE_S
from foretell.policy import make_policy
from foretell.policy.order import OVERTAKEN_PART
from tests.sweeps import cases

pytestmark = pytest.mark.sweep
SEEDS = range(cases(12, 3))
REQUESTS = 300
NEWS_S = 0.01
"""Pause between two reports of an engine; at each of them one request is reviewed."""
TOKEN_S = 0.02
DECODING = 20.0
"""Decoding time as a multiple of the time for which the engine keeps others waiting."""


@dataclass
class Waiting:
    """A request in an engine's queue."""

    key: str
    spec: RequestSpec
    arrived_s: float
    sent_s: float
    overdue_s: float

    @property
    def seat_s(self) -> float:
        return TOKEN_S * self.spec.length.expected_tokens


@dataclass
class Engine:
    """Serves one request at a time: the lowest priority value first, then in order of arrival."""

    name: str
    queue: list[Waiting] = field(default_factory=list)
    seated: str = ""
    free_s: float = 0.0

    def wait_s(self, now_s: float, before: list[Waiting]) -> float:
        left_s = self.free_s - now_s if self.seated else 0.0
        return left_s + sum(each.seat_s for each in before)

    def ahead_of(self, key: str) -> list[Waiting] | None:
        """The requests ahead of this one; None if it does not wait here."""
        for place, each in enumerate(self.queue):
            if each.key == key:
                return self.queue[:place]
        return None

    def foretell(self, spec: RequestSpec, now_s: float) -> Answer:
        """Forecast for a request that arrives now."""
        load = Load(bool(self.seated), len(self.queue), 0, 0, 100, 0, 1, True)
        before = [each for each in self.queue if each.spec.priority <= spec.priority]
        ttft_s = self.wait_s(now_s, before)
        e2e_s = ttft_s + DECODING * TOKEN_S * spec.length.expected_tokens
        told = Prediction(self.name, ttft_s, e2e_s, TOKEN_S, 0.0, 0.0, load, 100)
        return Answer(self.name, load, told)

    def put(self, new: Waiting) -> None:
        self.queue.append(new)
        self.queue.sort(key=lambda each: each.spec.priority)  # stable


class World:
    """A placement core and its engines; the clock advances from one report to the next."""

    def __init__(self, seed: int) -> None:
        self.draws = draws = Random(seed)
        policy = make_policy("predicted_latency", late_binding=True)
        self.core = PlacementCore(policy, PlacementConfig(), draws.random, self)
        self.engines = {f"engine-{i}": Engine(f"engine-{i}") for i in range(draws.randint(1, 3))}
        self.large_part = draws.uniform(0.05, 0.2)
        self.pause_s = draws.uniform(0.9, 1.3) * self._mean_seat_s() / len(self.engines)
        self.now_s = 0.0
        self.arrived_s: dict[str, float] = {}
        self.went_last = self.overtaken = 0

    def run(self) -> None:
        next_s = 0.0
        while len(self.arrived_s) < REQUESTS or any(map(self.core.stage, self.arrived_s)):
            if next_s <= self.now_s and len(self.arrived_s) < REQUESTS:
                next_s += self.draws.expovariate(1.0 / self.pause_s)
                self._arrive()
            for engine in self.engines.values():
                self._advance(engine)
                self._tell(events.InstanceUp(engine.name))
            self.now_s += NEWS_S

    def _mean_seat_s(self) -> float:
        return TOKEN_S * (self.large_part * 300 + (1 - self.large_part) * 20)

    def _arrive(self) -> None:
        key = f"r{len(self.arrived_s)}"
        self.arrived_s[key] = self.now_s
        is_large = self.draws.random() < self.large_part
        tokens = self.draws.uniform(*((100, 500) if is_large else (10, 30)))
        self._tell(events.Arrived(RequestSpec(key, 10, 0, LengthEstimate(tokens))))

    def _advance(self, engine: Engine) -> None:
        if engine.seated and engine.free_s <= self.now_s:
            key, engine.seated = engine.seated, ""
            self._tell(events.Ended(key, answered=True))
        if not engine.seated and engine.queue:
            chosen = engine.queue.pop(0)
            engine.seated, engine.free_s = chosen.key, self.now_s + chosen.seat_s
            self._check(chosen, engine)
            self._tell(events.Started(chosen.key))

    def _check(self, chosen: Waiting, engine: Engine) -> None:
        """Check that a later request overtakes another one only where that is allowed."""
        for other in engine.queue:
            if other.sent_s >= chosen.sent_s or chosen.spec.priority < 0:
                continue
            assert other.spec.priority == 1, f"{other} is overtaken by {chosen}"
            self.overtaken += 1
            is_in_time = chosen.sent_s < other.overdue_s
            slipped_in = self.now_s - chosen.sent_s <= REVIEW_PAUSE_S + 2 * NEWS_S
            assert is_in_time or slipped_in, f"{chosen} overtakes {other} at {self.now_s}"

    def _tell(self, event: events.Event) -> None:
        todo = [event]
        while todo:
            for effect in self.core.step(todo.pop(0), self.now_s):
                todo += self._done(effect)

    def _done(self, effect: effects.Effect) -> Iterator[events.Event]:
        match effect:
            case effects.Dispatch(key, spec, name, prediction):
                assert prediction is not None
                overdue_s = inf
                if spec.priority == 1:
                    decoding_s = prediction.e2e_s - prediction.ttft_s
                    overdue_s = self.arrived_s[key] + OVERTAKEN_PART * decoding_s
                    self.went_last += 1
                self.engines[name].put(
                    Waiting(key, spec, self.arrived_s[key], self.now_s, overdue_s)
                )
            case effects.Recall(key, name):
                queue = self.engines[name].queue
                queue[:] = [each for each in queue if each.key != key]
                yield events.Recalled(key)

    def predict(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        now_s: float,
        **wanted: object,
    ) -> Predicted:
        """See `ports.Predict`."""
        return Predicted([self.engines[name].foretell(spec, now_s) for name in instance_ids])

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        """See `ports.Predict`."""

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        """See `ports.Predict`."""
        return None

    def wait(self, spec: RequestSpec, instance_id: str, now_s: float) -> Wait:
        """See `ports.Predict`."""
        engine = self.engines[instance_id]
        ahead = engine.ahead_of(spec.request_id.split("-")[0])
        if ahead is None:
            return Wait(begun=True)
        return Wait(engine.wait_s(now_s, ahead))


def test_who_goes_last_is_overtaken_for_a_while_only() -> None:
    worlds = [World(seed) for seed in SEEDS]
    for world in worlds:
        world.run()
    assert sum(world.went_last for world in worlds) > 8 * len(worlds)
    assert sum(world.overtaken for world in worlds) > 8 * len(worlds)
