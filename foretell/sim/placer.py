"""Placements in virtual time: who is asked, what is chosen, what is reserved, and what fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from foretell.engine.direct import DirectForecaster
from foretell.length.distribution import Row
from foretell.model import Prediction, RequestSpec
from foretell.policy import Needs, Policy
from foretell.sim.config import ClusterConfig
from foretell.sim.events import Events
from foretell.sim.instance import InvariantError
from foretell.sim.node import Node
from foretell.sim.predictor import predict
from foretell.sim.scheduler import SILENCE, Answer, SimScheduler
from foretell.workload import Arrival, Draws


@dataclass(slots=True)
class Open:
    """A request between arrival and last token."""

    arrival: Arrival
    spec: RequestSpec
    length_row: Row
    scheduler: SimScheduler
    node: Node | None = None
    """Where it was sent."""
    predicted: Prediction | None = None
    attempts: int = 0
    avoid: set[int] = field(default_factory=set)
    ended: bool = False


class Placer:
    """The schedulers, and how their questions and choices travel."""

    def __init__(
        self,
        config: ClusterConfig,
        policies: Sequence[Policy],
        nodes: Sequence[Node],
        forecaster: DirectForecaster,
        draws: Draws,
        events: Events,
        *,
        deliver: Callable[[Open, Node, int], None],
        lose: Callable[[Open], None],
    ) -> None:
        """`deliver` gets a request to a node that had this generation when it was chosen, `lose` is
        told of one that nobody can serve."""
        self.schedulers = [
            SimScheduler(policy, len(nodes), config.candidates) for policy in policies
        ]
        self._config = config
        self._nodes = nodes
        self._names = [node.instance_id for node in nodes]
        self._forecaster = forecaster
        self._draws = draws
        self._events = events
        self._deliver = deliver
        self._lose = lose
        self._living: list[int] = []
        self.count_living()

    def count_living(self) -> None:
        """To be called when an engine has died or come back."""
        self._living = [node.index for node in self._nodes if node.up]

    def any_scheduler(self) -> SimScheduler:
        """The one that a new request happens upon."""
        if len(self.schedulers) == 1:
            return self.schedulers[0]
        return self.schedulers[int(self._draws.random() * len(self.schedulers))]

    def place(self, request: Open) -> None:
        """Placements that ask take turns, as `services.scheduler.placement` has it."""
        scheduler = request.scheduler
        if not scheduler.asks:
            self._choose(request, [(index, SILENCE) for index in self._candidates(request)])
        elif scheduler.busy:
            scheduler.waiting.append(partial(self.place, request))
        else:
            scheduler.busy = True
            self._events.after(self._config.network_delay_s, partial(self._ask, request))

    def _candidates(self, request: Open) -> list[int]:
        if not request.avoid:
            return self._living
        return [index for index in self._living if index not in request.avoid] or self._living

    def _ask(self, request: Open) -> None:
        """The predictors answer."""
        now_s = self._events.now_s
        asked = request.scheduler.shortlist(self._candidates(request), self._draws.random, now_s)
        heard = [
            self._nodes[index]
            for index in asked
            if not self._late() and self._nodes[index].hears_questions(now_s)
        ]
        self._forecaster.take(now_s)
        if request.scheduler.needs is Needs.LOAD:
            found: list[Answer] = [(node.predictor.load(), None) for node in heard]
        else:
            found = [(prediction.load, prediction) for prediction in self._predict(request, heard)]
        said = {node.index: answer for node, answer in zip(heard, found, strict=True)}
        answers = [(index, said.get(index, SILENCE)) for index in asked]
        self._events.after(self._config.network_delay_s, partial(self._answered, request, answers))

    def _late(self) -> bool:
        """A predictor misses its deadline."""
        silent_ratio = self._config.silent_ratio
        return silent_ratio > 0 and self._draws.random() < silent_ratio

    def _predict(self, request: Open, nodes: list[Node]) -> list[Prediction]:
        if not nodes:
            return []
        config = self._config
        return predict(
            self._forecaster,
            [node.predictor for node in nodes],
            request.spec,
            request.length_row,
            at_s=self._events.now_s + config.network_delay_s + config.dispatch_delay_s,
            now_s=self._events.now_s,
            ages_s=[node.age_s(self._events.now_s) for node in nodes],
            every_step_published=config.publish_interval_s == 0,
            externality=request.scheduler.needs is Needs.EXTERNALITY,
        )

    def _answered(self, request: Open, answers: list[tuple[int, Answer]]) -> None:
        self._choose(request, answers)
        scheduler = request.scheduler
        scheduler.busy = False
        if scheduler.waiting:
            scheduler.waiting.popleft()()

    def _choose(self, request: Open, answers: list[tuple[int, Answer]]) -> None:
        if not answers:
            self._lose(request)
            return
        draw = self._draws.random()
        index = request.scheduler.choose(
            request.spec, self._names, answers, draw, self._events.now_s
        )
        node = self._nodes[index]
        request.node = node
        request.attempts += 1
        request.predicted = next(answer[1] for i, answer in answers if i == index)
        at_s = self._events.now_s + self._config.dispatch_delay_s
        generation = node.generation
        self._events.after(
            self._config.network_delay_s, partial(self._reserve, request, node, generation, at_s)
        )
        self._events.at(at_s, partial(self._deliver, request, node, generation))

    def _reserve(self, request: Open, node: Node, generation: int, at_s: float) -> None:
        still = request.node is node and not request.ended
        if still and node.generation == generation and node.answers and request.scheduler.asks:
            node.predictor.reserve(request.spec, request.length_row, at_s, self._events.now_s)

    def retry(self, request: Open) -> None:
        """The attempt failed before a token."""
        self.let_go(request)
        if request.attempts >= self._config.max_attempts:
            self._lose(request)
        else:
            self.place(request)

    def let_go(self, request: Open) -> None:
        """The attempt under way ends: scheduler and predictor hear of it."""
        node = request.node
        if node is None:
            raise InvariantError(f"{request.arrival.request_id} was sent nowhere")
        request.scheduler.ended(node.index)
        node.predictor.complete(request.arrival.request_id)
        request.avoid.add(node.index)
        request.node = None
