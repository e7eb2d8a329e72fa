"""Drives the placement core in virtual time: asks simulated predictors, sends to simulated engines.

What decides is `foretell.placement.PlacementCore`, the same object that the scheduler service
drives. Here are only the ways: how long questions and requests travel, and who does not answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from foretell.length.distribution import Row, knots
from foretell.model import Prediction, RequestSpec
from foretell.placement import PlacementCore, effects, events
from foretell.policy import Needs, Policy
from foretell.policy.admission import Late
from foretell.sim.config import ClusterConfig
from foretell.sim.driver import VirtualDriver
from foretell.sim.events import Events
from foretell.sim.instance import InvariantError
from foretell.sim.node import Node
from foretell.sim.predictor import SimForecaster, predict
from foretell.workload import Arrival, Draws

HEALTH_INTERVAL_S = 0.5
"""Pause between health probes, as the scheduler service makes them."""


@dataclass(slots=True, eq=False)
class Open:
    """A request between arrival and last token."""

    arrival: Arrival
    core: PlacementCore
    """The placement core of the scheduler that it came to."""
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


class Placer(VirtualDriver):
    """The schedulers of a simulated cluster, before simulated predictors and engines."""

    def __init__(
        self,
        config: ClusterConfig,
        policies: Sequence[Policy],
        nodes: Sequence[Node],
        forecaster: SimForecaster,
        draws: Draws,
        clock: Events,
        *,
        deliver: Callable[[Open, Node, int], None],
        lose: Callable[[Open], None],
        reject: Callable[[Open], None],
        withdraw: Callable[[Open, Node], bool],
    ) -> None:
        """`deliver` gets a request to a node that had this generation when it was chosen, `lose` is
        told of one that nobody can serve, `reject` of one that is not admitted. `withdraw` takes
        one back from a node, unless something of it was computed."""
        super().__init__(clock)
        self.cores = [PlacementCore(each, config.placement, draws.random) for each in policies]
        self._config = config
        self._nodes = {node.instance_id: node for node in nodes}
        self._forecaster = forecaster
        self._draws = draws
        self._deliver = deliver
        self._lose = lose
        self._reject = reject
        self._withdraw = withdraw
        self._open: dict[str, Open] = {}
        self._chosen = 0
        for node in nodes:
            if node.up:
                self.found_up(node)

    def arrive(self, arrival: Arrival, spec: RequestSpec) -> None:
        """A scheduler, any of them, gets a request; `spec.length` is what it believes."""
        core = self.cores[0]
        if len(self.cores) > 1:
            core = self.cores[int(self._draws.random() * len(self.cores))]
        row = knots(spec.length, self._config.length_rule)
        self._open[arrival.request_id] = Open(arrival, core, row, spec)
        late: Late = "reject" if self._config.reject_late else "serve"
        self.step(core, events.Arrived(spec, late=late, tenant=arrival.tenant))

    def found_up(self, node: Node) -> None:
        """Every scheduler's health probe finds that the engine answers."""
        self._tell_all(events.InstanceUp(node.instance_id))

    def found_down(self, node: Node) -> None:
        """Every scheduler's health probe finds that the engine is gone."""
        self._tell_all(events.InstanceDown(node.instance_id))

    def draining(self, node: Node) -> None:
        """Every scheduler hears that the instance is to get nothing new."""
        self._tell_all(events.InstanceDraining(node.instance_id))

    def taken_back(self, node: Node) -> None:
        """Every scheduler hears that the instance, which was draining, gets requests again."""
        self._tell_all(events.InstanceTakenBack(node.instance_id))

    def removed(self, node: Node) -> None:
        """Every scheduler hears that the instance no longer belongs to the cluster."""
        self._tell_all(events.InstanceRemoved(node.instance_id))

    def outstanding(self, node: Node) -> int:
        """Requests in progress at the instance, and those on their way to it."""
        if not node.present:
            return 0
        return sum(core.instances.outstanding(node.instance_id) for core in self.cores)

    @property
    def unplaced(self) -> int:
        """Requests that were not sent to an instance yet."""
        return sum(request.node is None for request in self._open.values())

    def ended(self, request: Open, *, broken: bool = False) -> None:
        """The answer has ended; `broken`: its engine died in mid-answer."""
        del self._open[request.arrival.request_id]
        self.step(request.core, events.Ended(request.arrival.request_id, broken))

    def started(self, request: Open) -> None:
        """The request has its first token."""
        self.step(request.core, events.Started(request.arrival.request_id))

    def retry(self, request: Open) -> None:
        """The attempt under way failed before a token."""
        node = self.let_go(request)
        self.step(request.core, events.Failed(request.arrival.request_id))
        self._clock.after(HEALTH_INTERVAL_S, partial(self._probe, node))

    def let_go(self, request: Open) -> Node:
        """The attempt under way has ended: the predictor hears of it."""
        node = request.node
        if node is None:
            raise InvariantError(f"{request.arrival.request_id} was sent nowhere")
        node.predictor.complete(request.spec.request_id)
        request.node = None
        return node

    def check_idle(self) -> None:
        """InvariantError where a scheduler has forgotten a request."""
        for core in self.cores:
            try:
                core.check_idle()
            except AssertionError as error:
                raise InvariantError(str(error)) from error

    def _tell_all(self, event: events.Event) -> None:
        for core in self.cores:
            self.step(core, event)

    def _probe(self, node: Node) -> None:
        if node.up:
            self.found_up(node)

    def _refuse(self, effect: effects.Refuse) -> None:
        request = self._open.pop(effect.key)
        (self._reject if effect.because == "late" else self._lose)(request)

    # Predictors.

    def _ask(self, core: PlacementCore, effect: effects.Ask) -> None:
        self._clock.after(self._config.network_delay_s, partial(self._answer, core, effect))

    def _answer(self, core: PlacementCore, effect: effects.Ask) -> None:
        """The predictors answer."""
        now_s, request = self._clock.now_s, self._open[effect.key]
        asked = [self._nodes[instance_id] for instance_id in effect.instance_ids]
        if self._config.silent_ratio > 0:
            asked = [node for node in asked if not self._late()]
        heard = [node for node in asked if node.hears_questions(now_s)]
        self._forecaster.take(now_s)
        if effect.needs is Needs.LOAD:
            said = {n.instance_id: events.Answer(n.instance_id, n.predictor.load()) for n in heard}
        else:
            at_s = now_s + self._config.network_delay_s + self._config.dispatch_delay_s
            found = self._foretell(
                request,
                effect.spec,
                heard,
                at_s,
                announced_only=self._config.choose_by_announced,
                externality=effect.needs.externality,
                with_quantiles=effect.with_quantiles,
            )
            said = {p.instance_id: events.Answer(p.instance_id, p.load, p) for p in found}
        answers = [said.get(i) or events.Answer(i, silent=True) for i in effect.instance_ids]
        told = events.Heard(effect.key, answers)
        self._clock.after(self._config.network_delay_s, partial(self.step, core, told))

    def _review(self, core: PlacementCore, effect: effects.Review) -> None:
        self._clock.after(self._config.network_delay_s, partial(self._look, core, effect))

    def _look(self, core: PlacementCore, effect: effects.Review) -> None:
        """The predictors say how long the request waits where it is, and elsewhere."""
        now_s, node = self._clock.now_s, self._nodes[effect.instance_id]
        request, others = self._open.get(effect.key), effect.others
        heard = [n for n in map(self._nodes.__getitem__, others) if n.hears_questions(now_s)]
        told = events.Reviewed(effect.key, None)
        if request is not None and node.hears_questions(now_s):
            self._forecaster.take(now_s)
            wait_s = node.predictor.wait_s(
                effect.spec,
                request.length_row,
                now_s,
                every_step_published=self._config.publish_interval_s == 0,
            )
            at_s = now_s + self._config.network_delay_s + 2 * self._config.dispatch_delay_s
            found = self._foretell(
                request,
                effect.spec,
                heard if wait_s is not None else [],
                at_s,
                announced_only=self._config.choose_by_announced,
                externality=effect.needs.externality,
                with_quantiles=effect.with_quantiles,
            )
            answers = [events.Answer(p.instance_id, p.load, p) for p in found]
            begun = wait_s is None and node.predictor.has_begun(effect.spec.request_id)
            told = events.Reviewed(effect.key, wait_s, answers, begun)
        self._clock.after(self._config.network_delay_s, partial(self.step, core, told))

    def _recall(self, core: PlacementCore, effect: effects.Recall) -> None:
        request = self._open[effect.key]
        told = partial(self._take_back, core, request, request.spec)
        self._clock.after(self._config.dispatch_delay_s, told)

    def _take_back(self, core: PlacementCore, request: Open, spec: RequestSpec) -> None:
        """The engine is told, unless the attempt has ended meanwhile."""
        if request.ended or request.node is None or request.spec is not spec:
            return
        key = request.arrival.request_id
        if self._withdraw(request, request.node):
            self.let_go(request)
            self.step(core, events.Recalled(key))
        else:
            self.step(core, events.Started(key))

    def _late(self) -> bool:
        """A predictor misses its deadline."""
        return self._draws.random() < self._config.silent_ratio

    def _foretell(
        self,
        request: Open,
        spec: RequestSpec,
        nodes: list[Node],
        at_s: float,
        *,
        announced_only: bool = False,
        externality: bool = False,
        with_quantiles: bool,
    ) -> list[Prediction]:
        """The prediction of each node, with the request in its engine's queue `at_s`."""
        if not nodes:
            return []
        now_s = self._clock.now_s
        return predict(
            self._forecaster,
            [node.predictor for node in nodes],
            spec,
            request.length_row,
            at_s=at_s,
            now_s=now_s,
            ages_s=[node.age_s(now_s) for node in nodes],
            every_step_published=self._config.publish_interval_s == 0,
            announced_only=announced_only,
            externality=externality,
            with_quantiles=with_quantiles,
        )

    # Requests on their way to engines.

    def _dispatch(self, core: PlacementCore, effect: effects.Dispatch) -> None:
        request, node = self._open[effect.key], self._nodes[effect.instance_id]
        request.node, request.spec = node, effect.spec
        request.placed_s, request.attempts = self._clock.now_s, effect.attempt
        request.predicted = self._kept(effect.prediction)
        at_s = self._clock.now_s + self._config.dispatch_delay_s
        self._clock.at(at_s, partial(self._deliver, request, node, node.generation))

    def _kept(self, answer: Prediction | None) -> Prediction | None:
        """The answer of the chosen instance, for those requests whose prediction is recorded."""
        every = self._config.foretell_every
        self._chosen += 1
        return answer if every == 0 or self._chosen % every == 0 else None

    def _reserve(self, core: PlacementCore, effect: effects.Reserve) -> None:
        if core.policy.needs is Needs.NOTHING:
            return  # nobody listens to the predictors
        request, node = self._open[effect.key], self._nodes[effect.instance_id]
        at_s = self._clock.now_s + self._config.dispatch_delay_s
        told = partial(self._reserved, request, effect.spec, node, node.generation, at_s)
        self._clock.after(self._config.network_delay_s, told)

    def _reserved(
        self, request: Open, spec: RequestSpec, node: Node, generation: int, at_s: float
    ) -> None:
        still_there = request.node is node and not request.ended
        if not still_there or request.spec is not spec or node.generation != generation:
            return
        now_s = self._clock.now_s
        predicts = request.predicted is not None and self._config.foretell_every > 0
        if predicts and node.hears_questions(now_s):
            self._forecaster.take(now_s)
            (request.predicted,) = self._foretell(
                request, spec, [node], at_s, with_quantiles=spec.slo.given
            )
        if node.answers:
            node.predictor.reserve(spec, request.length_row, at_s, now_s)
