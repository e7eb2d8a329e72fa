"""The placement core keeps its promises for any possible order of events.

A failure names its seed: replay it with

    pytest tests/placement/test_seeds.py -k 'seed and SEED'
"""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from foretell.model import LengthEstimate, Load, Prediction, RequestSpec, Slo
from foretell.placement import PlacementConfig, PlacementCore, effects, events
from foretell.placement.ports import Answer, Predicted, Wait
from foretell.policy import make_policy

POLICIES = ("slo", "least_outstanding", "round_robin", "infaas", "predicted_latency")
SEEDS_EACH = 60
MODELS = frozenset({"a", "b"})
LENGTH = LengthEstimate(50.0)


class World:
    """All that a core may meet, drawn from a seed: late, wrong and missing answers."""

    def __init__(self, seed: int, policy: str) -> None:
        self.draws = draws = Random(f"{seed} {policy}")
        self.config = PlacementConfig(
            candidates=draws.choice([0, 2, 16]),
            max_attempts=draws.randint(1, 3),
            retry_pause_s=draws.choice([0.0, 0.05]),
            instance_wait_s=draws.choice([0.0, 0.0, 1.0]),
        )
        late = {"late_binding": True} if policy == "predicted_latency" else {}
        self.core = PlacementCore(make_policy(policy, **late), self.config, draws.random, self)
        self.names = [f"engine-{number}" for number in range(draws.randint(1, 6))]
        self.now_s = 0.0
        self.up: set[str] = set()
        self.removed: set[str] = set()
        self.recalling: set[str] = set()
        self.waiting: dict[str, effects.WaitUntil] = {}
        self.sent: dict[str, effects.Dispatch] = {}
        self.ended: Counter[str] = Counter()
        self.dispatched: Counter[str] = Counter()
        self.arrived = 0

    def run(self, requests: int) -> None:
        """Run until this many requests have arrived and all have ended."""
        while self.arrived < requests or len(self.ended) < requests:
            self.now_s += self.draws.choice([0.0, 0.001, 0.03])
            self._happen(requests)
            self._check()
        self.core.check_idle()
        assert set(self.ended.values()) == {1}, f"ended more than once: {self.ended}"
        assert len(self.ended) == self.arrived

    def tell(self, event: events.Event) -> None:
        """Pass the event to the core, and note its effects."""
        for effect in self.core.step(event, self.now_s):
            self._note(effect)

    def _happen(self, requests: int) -> None:
        """Let one of the events that are possible now happen."""
        can = [self._instance_changes]
        can += [self._arrive] * 3 * (self.arrived < requests)
        can += [self._estimated] * (self.arrived > 0)
        can += [self._gives_back] * 4 * bool(self.recalling)
        can += [self._starts] * bool(self.sent)
        can += [self._time_passes] * 2 * bool(self.waiting)
        can += [self._answer_ends] * 2 * bool(self.sent)
        can += [self._client_leaves] * (self.arrived > 0)
        self.draws.choice(can)()

    def _arrive(self) -> None:
        draws, key = self.draws, f"r{self.arrived}"
        self.arrived += 1
        target_s = draws.choice([float("inf"), 0.1, 5.0])
        spec = RequestSpec(
            key, draws.randint(1, 500), 0, LENGTH, draws.choice([0, 0, -1]), slo=Slo(target_s)
        )
        late = draws.choice(["serve", "reject"])
        model, waited_s, whole = draws.choice(["a", "b"]), draws.random(), draws.random() < 0.5
        tenant = draws.choice(["", "a", "b"])
        self.tell(events.Arrived(spec, model, late, waited_s, whole=whole, tenant=tenant))

    def _estimated(self) -> None:
        """Send an estimate, perhaps after the request has ended."""
        key = f"r{self.draws.randrange(self.arrived)}"
        self.tell(events.Estimated(key, LengthEstimate(self.draws.uniform(1, 900))))

    def predict(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        now_s: float,
        **wanted: object,
    ) -> Predicted:
        """See `ports.Predict`; for some instances nothing is known."""
        assert instance_ids, "nobody is predicted for"
        assert self.up.issuperset(instance_ids), "somebody is predicted for who is down"
        known = [name for name in instance_ids if self.draws.random() < 0.8]
        took_s = self.draws.choice([0.0, 0.001, 0.3])
        return Predicted([self._answer(name) for name in known], took_s)

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        """See `ports.Predict`."""

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        """See `ports.Predict`."""
        return None

    def wait(self, spec: RequestSpec, instance_id: str, now_s: float) -> Wait:
        """See `ports.Predict`."""
        wait_s = self.draws.choice([None, 0.005, 30.0])
        return Wait(wait_s, begun=wait_s is None and self.draws.random() < 0.5)

    def _gives_back(self) -> None:
        key = self._pick(self.recalling)
        self.recalling.discard(key)
        del self.sent[key]
        self.tell(events.Recalled(key))

    def _starts(self) -> None:
        key = self._pick(self.sent)
        self.recalling.discard(key)
        self.tell(events.Started(key))

    def _answer(self, name: str) -> Answer:
        draws = self.draws
        waiting, used = draws.choice([0, 0, 3]), draws.randint(0, 100)
        load = Load(draws.randint(0, 8), waiting, 0, used, 100, 0, 8, draws.random() < 0.5)
        if draws.random() < 0.1:
            return Answer(name, load)
        ttft_s = draws.choice([0.01, 1.0, 20.0])
        return Answer(name, load, Prediction(name, ttft_s, ttft_s + 1.0, 0.01, 0.0, 0.0, load, 100))

    def _time_passes(self) -> None:
        wait = self.waiting.pop(self._pick(self.waiting))
        self.now_s = max(self.now_s, wait.at_s)
        self.tell(events.TimePassed(wait.key, wait.ticket))

    def _answer_ends(self) -> None:
        key = self._pick(self.sent)
        del self.sent[key]
        self.recalling.discard(key)
        if self.draws.random() < 0.3:
            self.tell(events.Failed(key))
        else:
            self._end(key)
            broken = self.draws.random() < 0.1
            self.tell(events.Ended(key, broken, answered=not broken))

    def _client_leaves(self) -> None:
        key = f"r{self.draws.randrange(self.arrived)}"
        if self.core.stage(key) is not None and key not in self.sent:
            self._end(key)
            self.tell(events.Gone(key))

    def _instance_changes(self) -> None:
        name = self.draws.choice(self.names)
        kind = self.draws.choice(["up", "up", "up", "down", "draining", "taken back", "removed"])
        if kind == "up":
            self.up.add(name)
            ages_s = self.draws.choices([0.0, 1.0, float("inf")], k=2)
            seen_s = (self.now_s - age_s for age_s in ages_s)
            self.tell(events.InstanceUp(name, MODELS, *seen_s))
        elif kind == "down":
            self.up.discard(name)
            self.tell(events.InstanceDown(name))
        elif kind == "removed":
            self.up.discard(name)
            self.tell(events.InstanceRemoved(name))
        elif kind == "draining":
            self.tell(events.InstanceDraining(name))
        else:
            self.tell(events.InstanceTakenBack(name))

    def _note(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Recall(key, instance_id):
                assert self.sent[key].instance_id == instance_id, "it is not there"
                self.recalling.add(key)
            case effects.GiveUp(key):
                assert key in self.sent, "it is nowhere"
            case effects.WaitUntil(key, at_s):
                assert at_s >= self.now_s
                self.waiting[key] = effect
            case effects.Dispatch(key, spec, instance_id):
                assert key not in self.sent, f"{key} is sent twice"
                self.dispatched[spec.request_id] += 1
                assert self.dispatched[spec.request_id] == 1, "an attempt's id is used again"
                assert instance_id in self.core.instances
                self.sent[key] = effect
            case effects.Refuse(key):
                self._end(key)

    def _end(self, key: str) -> None:
        self.ended[key] += 1
        self.waiting.pop(key, None)

    def _check(self) -> None:
        """Check what holds at any time."""
        leased = sum(instance.outstanding for instance in self.core.instances)
        assert leased <= len(self.sent), "more leases than requests in progress"

    def _pick(self, keys: object) -> str:
        return self.draws.choice(sorted(keys))  # type: ignore[call-overload]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(SEEDS_EACH))
def test_seed(seed: int, policy: str) -> None:
    World(seed, policy).run(requests=40)


def new_core() -> PlacementCore:
    policy = make_policy("round_robin")
    return PlacementCore(policy, PlacementConfig(), lambda: 0.0, World(0, "round_robin"))


def test_what_cannot_happen_is_refused() -> None:
    core = new_core()
    core.step(events.InstanceUp("engine-0"), 1.0)
    core.step(events.Arrived(RequestSpec("r", 1, 0, LENGTH)), 1.0)
    with pytest.raises(AssertionError, match="arrived twice"):
        core.step(events.Arrived(RequestSpec("r", 1, 0, LENGTH)), 1.0)
    with pytest.raises(AssertionError, match="is dispatched"):
        core.step(events.Gone("r"), 1.0)
    with pytest.raises(AssertionError, match="time went"):
        core.step(events.Ended("r"), 0.5)


def test_a_lease_is_given_back_once() -> None:
    core = new_core()
    core.step(events.InstanceUp("engine-0"), 0.0)
    lease = core.instances["engine-0"].lease(0.0)
    lease.give_back()
    with pytest.raises(AssertionError, match="given back twice"):
        lease.give_back()
    assert core.instances["engine-0"].outstanding == 0
