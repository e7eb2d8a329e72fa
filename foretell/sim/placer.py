"""Placements in virtual time: who is asked, what is chosen, what is reserved, and what fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from foretell.engine.direct import DirectForecaster
from foretell.length.distribution import Row
from foretell.model import Prediction, RequestSpec
from foretell.policy import Needs, Policy, Urgency
from foretell.policy.admission import unattainable
from foretell.policy.order import waits_too_long
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
    placed_s: float = 0.0
    """When it was last sent somewhere."""

    @property
    def urgency(self) -> Urgency:
        """Whether others go before it."""
        return Urgency(self.spec.priority, self.arrival.t_s)


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
        reject: Callable[[Open], None],
    ) -> None:
        """`deliver` gets a request to a node that had this generation when it was chosen, `lose` is
        told of one that nobody can serve, `reject` of one that is not admitted."""
        self.schedulers = [
            SimScheduler(policy, len(nodes), config.candidates, config.largest_last)
            for policy in policies
        ]
        self._config = config
        self._nodes = nodes
        self._names = [node.instance_id for node in nodes]
        self._forecaster = forecaster
        self._draws = draws
        self._events = events
        self._deliver = deliver
        self._lose = lose
        self._reject = reject
        self._living: list[int] = []
        self._chosen = 0
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
        """Placements that ask take turns, as `services.scheduler.placing.placement` has it."""
        scheduler = request.scheduler
        if not scheduler.asks:
            self._choose(request, [(index, SILENCE) for index in self._candidates(request)])
        elif scheduler.busy:
            scheduler.queue(request.urgency, partial(self.place, request))
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
        """Of a request that would be sent when the answers are back."""
        config, now_s = self._config, self._events.now_s
        return self._foretell(
            request,
            nodes,
            now_s + config.network_delay_s + config.dispatch_delay_s,
            announced_only=config.choose_by_announced,
            externality=request.scheduler.needs.externality,
        )

    def _foretell(
        self,
        request: Open,
        nodes: list[Node],
        at_s: float,
        *,
        announced_only: bool = False,
        externality: bool = False,
    ) -> list[Prediction]:
        if not nodes:
            return []
        now_s = self._events.now_s
        return predict(
            self._forecaster,
            [node.predictor for node in nodes],
            request.spec,
            request.length_row,
            at_s=at_s,
            now_s=now_s,
            ages_s=[node.age_s(now_s) for node in nodes],
            every_step_published=self._config.publish_interval_s == 0,
            announced_only=announced_only,
            externality=externality,
            # They decide about targets, and for policies that look at risks.
            with_quantiles=request.spec.slo.given or request.scheduler.needs is Needs.RISK,
        )

    def _answered(self, request: Open, answers: list[tuple[int, Answer]]) -> None:
        if self._choose(request, answers):
            request.scheduler.next_turn()
        else:
            self._hold(request)

    def _hold(self, request: Open) -> None:
        """It keeps its turn, and asks again when one of its scheduler's requests has ended, when a
        more urgent one comes, or after a while."""
        scheduler = request.scheduler

        def ask_again() -> None:
            if scheduler.ask_again is not ask_again:
                return  # it has asked already
            scheduler.ask_again = None
            if scheduler.has_more_urgent(request.urgency):
                scheduler.queue(request.urgency, partial(self.place, request))
                scheduler.next_turn()
            else:
                self._events.after(self._config.network_delay_s, partial(self._ask, request))

        scheduler.ask_again = ask_again
        self._events.after(self._config.hold_recheck_s, ask_again)

    def _choose(self, request: Open, answers: list[tuple[int, Answer]]) -> bool:
        """False where the request is held."""
        if not answers:
            self._lose(request)
            return True
        draw, now_s, spec = self._draws.random(), self._events.now_s, request.spec
        if spec.priority > request.arrival.priority and waits_too_long(p for _, (_, p) in answers):
            spec = request.spec = replace(spec, priority=request.arrival.priority)
        if spec.slo.given:
            spec = replace(spec, slo=spec.slo.after(now_s - request.arrival.t_s))
            if request.attempts == 0 and self._hopeless(spec, answers):
                self._reject(request)
                return True
        index = request.scheduler.choose(
            spec,
            self._names,
            answers,
            draw,
            now_s,
            may_hold=now_s < request.arrival.t_s + self._config.hold_max_s,
        )
        if index is None:
            return False
        node = self._nodes[index]
        request.node = node
        request.placed_s = now_s
        request.attempts += 1
        request.predicted = self._kept(next(answer[1] for i, answer in answers if i == index))
        at_s = now_s + self._config.dispatch_delay_s
        generation = node.generation
        self._events.after(
            self._config.network_delay_s, partial(self._reserve, request, node, generation, at_s)
        )
        self._events.at(at_s, partial(self._deliver, request, node, generation))
        return True

    def _kept(self, answer: Prediction | None) -> Prediction | None:
        """What is remembered of the chosen instance's answer: it is asked again of these only."""
        every = self._config.foretell_every
        self._chosen += 1
        return answer if every == 0 or self._chosen % every == 0 else None

    def _hopeless(self, spec: RequestSpec, answers: Sequence[tuple[int, Answer]]) -> bool:
        """Not to be admitted. Who was admitted once is never turned away."""
        if not self._config.reject_late:
            return False
        predictions = (answer[1] for _, answer in answers)
        return unattainable(spec.slo, [p for p in predictions if p is not None]) is not None

    def _reserve(self, request: Open, node: Node, generation: int, at_s: float) -> None:
        still = request.node is node and not request.ended
        if not (still and node.generation == generation and request.scheduler.asks):
            return
        if request.predicted is not None and self._config.foretell_every:
            self._tell(request, node, at_s)
        if node.answers:
            node.predictor.reserve(request.spec, request.length_row, at_s, self._events.now_s)

    def _tell(self, request: Open, node: Node, at_s: float) -> None:
        """What is foretold of the chosen instance, with those who will come."""
        if node.hears_questions(self._events.now_s):
            self._forecaster.take(self._events.now_s)
            (request.predicted,) = self._foretell(request, [node], at_s)

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
