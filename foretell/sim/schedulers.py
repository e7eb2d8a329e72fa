"""The schedulers of a simulated cluster: placement core, driver and snapshot cache are the classes
that the scheduler service runs.

Only the delays are simulated: how long requests and messages about them take.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Unpack

from foretell.engine.snapshot_cache import SnapshotCache
from foretell.length.distribution import Row, knots
from foretell.model import LengthEstimate, Prediction, RequestSpec
from foretell.placement import PlacementCore, effects, events
from foretell.placement.cached import CachedPredictions
from foretell.placement.driver import Driver
from foretell.placement.ports import Predicted, Wanted
from foretell.policy import Needs, Policy
from foretell.policy.admission import Late
from foretell.sim.config import ClusterConfig
from foretell.sim.events import Events, VirtualClock
from foretell.sim.instance import InvariantError
from foretell.sim.node import Node
from foretell.sim.predictor import Link
from foretell.workload import Arrival, Draws

HEALTH_INTERVAL_S = 0.5
"""Pause between health probes, as the scheduler service makes them."""
_SINGLE_RATIO = 0.5
"""Cost of a single rollout, relative to that of all rollouts."""


@dataclass(slots=True, eq=False)
class Open:
    """A request between arrival and last token."""

    arrival: Arrival
    scheduler: "Scheduler"
    """The scheduler that got it."""
    length_row: Row
    spec: RequestSpec
    """With the id of the attempt under way."""
    node: Node | None = None
    """The instance that it was sent to."""
    predicted: Prediction | None = None
    attempts: int = 0
    ended: bool = False
    placed_s: float = 0.0
    """The time at which it was last dispatched."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Callbacks of the schedulers."""

    deliver: Callable[[Open, Node, int], None]
    """Delivers a request to a node, which had this generation when it was chosen."""
    lose: Callable[[Open], None]
    """Notes a request that no instance can serve."""
    reject: Callable[[Open], None]
    """Notes a request that is not admitted."""
    withdraw: Callable[[Open, Node], bool]
    """Takes a request back from a node, unless a part of it was computed."""


class _Predictions(CachedPredictions):
    """Takes `prediction_s` of the scheduler's time; predicts again for every n-th request."""

    def __init__(self, cache: SnapshotCache, config: ClusterConfig) -> None:
        super().__init__(cache)
        self._config = config
        self.links: dict[str, Link] = {}
        self.placed = 0

    @property
    def is_kept(self) -> bool:
        """Whether the prediction of the request that is placed next is recorded."""
        every = self._config.foretell_every
        return every == 0 or (self.placed + 1) % every == 0

    def predict(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        now_s: float,
        **wanted: Unpack[Wanted],
    ) -> Predicted:
        found = super().predict(spec, instance_ids, now_s, **wanted)
        each_s = self._config.prediction_s * (_SINGLE_RATIO if wanted["single"] else 1.0)
        return found._replace(took_s=each_s * len(found.answers) if found.inputs else 0.0)

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        if self.links:
            self.links[instance_id].reserve(spec)

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        if not self._config.foretell_every or not self.is_kept:
            return None
        return super().predict_one(spec, instance_id, now_s)


class Scheduler:
    """One scheduler. Implements `foretell.placement.ports.Send`."""

    def __init__(
        self,
        policy: Policy,
        config: ClusterConfig,
        nodes: Sequence[Node],
        draws: Draws,
        clock: Events,
        ways: Ways,
    ) -> None:
        self.open: dict[str, Open] = {}
        self._config = config
        self._clock = clock
        self._nodes = {node.instance_id: node for node in nodes}
        self._ways = ways
        cache = SnapshotCache(self._length_row)
        self._predictions = _Predictions(cache, config)
        self._links = self._predictions.links
        self.core = PlacementCore(policy, config.placement, draws.random, self._predictions)
        self._driver = Driver(self.core, VirtualClock(clock), self)
        self.tell = self._driver.tell
        if policy.needs is not Needs.NOTHING:
            for node in nodes:
                followed = cache.follow(node.instance_id)
                link = Link(followed, self._length_row, clock, config.network_delay_s)
                self._links[node.instance_id] = link
                node.follow(link)

    def _length_row(self, estimate: LengthEstimate) -> Row:
        return knots(estimate, self._config.length_rule)

    def arrive(self, arrival: Arrival, spec: RequestSpec) -> None:
        """Accept a request; `spec.length` is its length as the scheduler believes."""
        self.open[arrival.request_id] = Open(arrival, self, self._length_row(spec.length), spec)
        late: Late = "reject" if self._config.reject_late else "serve"
        self.tell(events.Arrived(spec, late=late, tenant=arrival.tenant))

    def ended(self, request: Open, *, broken: bool = False) -> None:
        """Note that the answer has ended; `broken`: its engine died in mid-answer."""
        key = request.arrival.request_id
        self.let_go(request, answered=True)
        del self.open[key]
        self.tell(events.Ended(key, broken))

    def retry(self, request: Open) -> None:
        """Note that the attempt under way failed before a token."""
        self.let_go(request, answered=False)
        self.tell(events.Failed(request.arrival.request_id))

    def let_go(self, request: Open, *, answered: bool) -> None:
        """Tell the predictor that the attempt under way has ended."""
        node, request.node = request.node, None
        if node is None:
            raise InvariantError(f"{request.arrival.request_id} was sent nowhere")
        if self._links:
            self._links[node.instance_id].ended(request.spec.request_id, answered=answered)

    # Effects that the core's driver has carried out.

    def dispatch(self, effect: effects.Dispatch) -> None:
        request, node = self.open[effect.key], self._nodes[effect.instance_id]
        request.node, request.spec = node, effect.spec
        request.placed_s, request.attempts = self._clock.now_s, effect.attempt
        request.predicted = effect.prediction if self._predictions.is_kept else None
        self._predictions.placed += 1
        at_s = self._clock.now_s + self._config.dispatch_delay_s
        self._clock.at(at_s, partial(self._ways.deliver, request, node, node.generation))

    def revise(self, effect: effects.Revise) -> None:
        if self._links:
            self._links[effect.instance_id].revise(effect.spec)

    def recall(self, effect: effects.Recall) -> None:
        request = self.open[effect.key]
        take_back = partial(self._take_back, request, request.spec)
        self._clock.after(self._config.dispatch_delay_s, take_back)

    def _take_back(self, request: Open, spec: RequestSpec) -> None:
        """Take the request back from its engine, unless the attempt has ended meanwhile."""
        if request.ended or request.node is None or request.spec is not spec:
            return
        key = request.arrival.request_id
        if self._ways.withdraw(request, request.node):
            self.let_go(request, answered=False)
            self.tell(events.Recalled(key))
        else:
            self.tell(events.Started(key))

    def give_up(self, effect: effects.GiveUp) -> None:
        """Do nothing, as no simulated engine hangs."""

    def refuse(self, effect: effects.Refuse) -> None:
        request = self.open.pop(effect.key)
        (self._ways.reject if effect.because == "late" else self._ways.lose)(request)

    def degraded(self, effect: effects.Degraded) -> None:
        """Do nothing, as the simulator has no such metric."""


class SimSchedulers:
    """All schedulers of a simulated cluster."""

    def __init__(
        self,
        config: ClusterConfig,
        policies: Sequence[Policy],
        nodes: Sequence[Node],
        draws: Draws,
        clock: Events,
        ways: Ways,
    ) -> None:
        """One scheduler for each policy."""
        self._draws = draws
        self._clock = clock
        self._all = [Scheduler(each, config, nodes, draws, clock, ways) for each in policies]
        for node in nodes:
            if node.up:
                self.tell_all(events.InstanceUp(node.instance_id))

    def arrive(self, arrival: Arrival, spec: RequestSpec) -> None:
        """Give a request to a random scheduler."""
        scheduler = self._all[0]
        if len(self._all) > 1:
            scheduler = self._all[int(self._draws.random() * len(self._all))]
        scheduler.arrive(arrival, spec)

    def tell_all(self, event: events.Event) -> None:
        """Tell every scheduler."""
        for each in self._all:
            each.tell(event)

    def outstanding(self, node: Node) -> int:
        """Requests in progress at the instance, and those on their way to it."""
        if not node.present:
            return 0
        return sum(each.core.instances.outstanding(node.instance_id) for each in self._all)

    @property
    def unplaced(self) -> int:
        """Requests that have not been sent to an instance yet."""
        return sum(request.node is None for each in self._all for request in each.open.values())

    def retry(self, request: Open) -> None:
        """Note that the attempt under way failed before a token, and probe its instance later."""
        node = request.node
        request.scheduler.retry(request)
        if node is not None:
            self._clock.after(HEALTH_INTERVAL_S, partial(self._probe, node))

    def check_idle(self) -> None:
        """Raise InvariantError if a scheduler still keeps anything of a request."""
        for each in self._all:
            try:
                each.core.check_idle()
            except AssertionError as error:
                raise InvariantError(str(error)) from error

    def _probe(self, node: Node) -> None:
        if node.up:
            self.tell_all(events.InstanceUp(node.instance_id))
