"""A whole cluster in virtual time: arrivals, policies, predictors, engines, one event queue.

Everything that decides is the code that serves: the policies of `foretell.policy`, the twin's
kernel and its forecast. Only time is made up. Equal inputs give equal reports.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import chain, count
from math import inf

from foretell.engine import Content
from foretell.engine import Sequence as EngineSequence
from foretell.engine.direct import DirectForecaster
from foretell.length.distribution import Row, knots
from foretell.model import EngineConfig, Prediction, RequestSpec
from foretell.policy import Needs, Policy
from foretell.sim.config import ClusterConfig, Fault, FaultKind
from foretell.sim.instance import InvariantError, check
from foretell.sim.node import Node
from foretell.sim.predictor import predict
from foretell.sim.report import Report, Served, free_block_moments
from foretell.sim.scheduler import SILENCE, Answer, SimScheduler
from foretell.workload import Arrival, Draws

MAX_EVENTS = 500_000_000
"""Events after which a run counts as endless; a bound, not a tuning knob."""


def simulate(
    config: ClusterConfig,
    arrivals: Sequence[Arrival],
    policies: Sequence[Policy],
    draws: Draws,
    *,
    ended: Callable[[], None] = lambda: None,
) -> Report:
    """Serve `arrivals` to the last token, with one scheduler for each of `policies`.

    `ended` is called whenever a request is. Raises ValueError for a request that some engine
    could never serve, and InvariantError when the cluster breaks one of its invariants.
    """
    if not policies:
        raise ValueError("a cluster needs at least one scheduler")
    engines = {instance.engine for instance in config.instances}
    for arrival in arrivals:
        for engine in engines:
            check_fits(arrival, engine)
    return _Cluster(config, arrivals, policies, draws, ended).run()


def check_fits(arrival: Arrival, engine: EngineConfig) -> None:
    """ValueError where `engine` could never serve `arrival`."""
    tokens = arrival.prompt_tokens + arrival.output_tokens
    if arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
        raise ValueError(f"{arrival} needs at least one prompt and one output token")
    if tokens > engine.max_model_len:
        raise ValueError(f"{arrival} exceeds max_model_len {engine.max_model_len}")
    if engine.blocks_for(tokens) > engine.total_blocks:
        raise ValueError(f"{arrival} needs more than {engine.total_blocks} blocks")


@dataclass(slots=True)
class _Open:
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


class _Cluster:
    def __init__(
        self,
        config: ClusterConfig,
        arrivals: Sequence[Arrival],
        policies: Sequence[Policy],
        draws: Draws,
        ended: Callable[[], None],
    ) -> None:
        self._config = config
        self._arrivals = arrivals
        self._draws = draws
        self._tell_ended = ended
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()  # events of one instant run in the order they were made
        self._open: dict[str, _Open] = {}
        self._served: dict[str, Served] = {}
        self._lost: set[str] = set()
        self._left = len(arrivals)
        self._samples: list[tuple[float, tuple[int, ...]]] = []
        times_s = [arrival.t_s for arrival in arrivals] or [0.0]
        self._first_s, self._last_s = min(times_s), max(times_s)
        self._schedulers = [SimScheduler(policy, len(config.instances)) for policy in policies]
        largest = max(instance.engine.block_size_tokens for instance in config.instances)
        self._forecaster = DirectForecaster(len(config.instances), largest)
        self._nodes = [
            Node(
                index,
                config,
                self._forecaster,
                watched=any(scheduler.asks for scheduler in self._schedulers),
                counted_s=(self._first_s, self._last_s),
            )
            for index in range(len(config.instances))
        ]
        self._names = [node.instance_id for node in self._nodes]

    def run(self) -> Report:
        """Process events until none is left; then nothing may be left undone."""
        for arrival in self._arrivals:
            estimate = self._config.estimate(arrival)
            spec = RequestSpec(arrival.request_id, arrival.prompt_tokens, 0, estimate)
            row = knots(estimate, self._config.length_rule)
            self._at(arrival.t_s, partial(self._arrive, arrival, spec, row))
        for fault in self._config.faults:
            self._at(fault.at_s, partial(self._fail, fault))
        if self._config.sample_every_s > 0:
            self._at(self._first_s, self._sample)
        for _ in range(MAX_EVENTS):
            if not self._events:
                break
            at_s, _, action = heappop(self._events)
            check(at_s >= self._now_s, f"time went from {self._now_s} back to {at_s}")
            self._now_s = at_s
            action()
        else:
            raise InvariantError(f"no end after {MAX_EVENTS} events")
        self._check_all_ended()
        return self._report()

    def _check_all_ended(self) -> None:
        check(not self._open, f"never ended: {sorted(self._open)}")
        check(self._left == 0, f"{self._left} requests ended neither well nor badly")
        for node in self._nodes:
            if node.up:
                node.instance.check_empty()
                check(node.predictor.reservations == 0, "a reservation outlived its request")
        for scheduler in self._schedulers:
            check(scheduler.outstanding == 0, "the scheduler lost count")
            check(not (scheduler.busy or scheduler.waiting), "a placement was forgotten")

    def _report(self) -> Report:
        served = tuple(
            self._served[arrival.request_id]
            for arrival in self._arrivals
            if arrival.request_id in self._served
        )
        lost = tuple(a.request_id for a in self._arrivals if a.request_id in self._lost)
        check(len(served) + len(lost) == len(self._arrivals), "a request ended twice, or never did")
        last_s = max((r.arrival_s + r.e2e_s for r in served), default=self._first_s)
        free = chain.from_iterable(node.free_blocks(self._now_s) for node in self._nodes)
        return Report(
            served,
            lost,
            last_s - self._first_s,
            sum(node.steps for node in self._nodes),
            *free_block_moments(free),
            samples=tuple(self._samples),
        )

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        heappush(self._events, (at_s, next(self._order), action))

    # Placement.

    def _arrive(self, arrival: Arrival, spec: RequestSpec, row: Row) -> None:
        """A scheduler, any of them, gets a request."""
        key = arrival.request_id
        check(
            key not in self._open and key not in self._served and key not in self._lost,
            f"{key} arrived twice",
        )
        index = 0
        if len(self._schedulers) > 1:
            index = int(self._draws.random() * len(self._schedulers))
        request = _Open(arrival, spec, row, self._schedulers[index])
        self._open[key] = request
        self._after(self._config.tagger_delay_s, partial(self._place, request))

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Now, or later."""
        if delay_s > 0:
            self._at(self._now_s + delay_s, action)
        else:
            action()

    def _place(self, request: _Open) -> None:
        """Placements that ask take turns, as `services.scheduler.placement` has it."""
        scheduler = request.scheduler
        if not scheduler.asks:
            self._choose(request, [(node.index, SILENCE) for node in self._candidates(request)])
        elif scheduler.busy:
            scheduler.waiting.append(request)
        else:
            scheduler.busy = True
            self._after(self._config.network_delay_s, partial(self._ask, request))

    def _candidates(self, request: _Open) -> list[Node]:
        living = [node for node in self._nodes if node.up]
        if not request.avoid:
            return living
        return [node for node in living if node.index not in request.avoid] or living

    def _ask(self, request: _Open) -> None:
        """The predictors answer."""
        nodes = self._candidates(request)
        heard = [node for node in nodes if not self._late() and node.hears_questions(self._now_s)]
        if request.scheduler.needs is Needs.LOAD:
            found: list[Answer] = [(node.predictor.load(), None) for node in heard]
        else:
            found = [(prediction.load, prediction) for prediction in self._predict(request, heard)]
        said = {node.index: answer for node, answer in zip(heard, found, strict=True)}
        answers = [(node.index, said.get(node.index, SILENCE)) for node in nodes]
        self._after(self._config.network_delay_s, partial(self._answered, request, answers))

    def _late(self) -> bool:
        """A predictor misses its deadline."""
        silent_ratio = self._config.silent_ratio
        return silent_ratio > 0 and self._draws.random() < silent_ratio

    def _predict(self, request: _Open, nodes: list[Node]) -> list[Prediction]:
        if not nodes:
            return []
        config = self._config
        return predict(
            self._forecaster,
            [node.predictor for node in nodes],
            request.spec,
            request.length_row,
            at_s=self._now_s + config.network_delay_s + config.dispatch_delay_s,
            now_s=self._now_s,
            ages_s=[node.age_s(self._now_s) for node in nodes],
            every_step_published=config.publish_interval_s == 0,
        )

    def _answered(self, request: _Open, answers: list[tuple[int, Answer]]) -> None:
        self._choose(request, answers)
        scheduler = request.scheduler
        scheduler.busy = False
        if scheduler.waiting:
            following = scheduler.waiting.popleft()
            assert isinstance(following, _Open)
            self._place(following)

    def _choose(self, request: _Open, answers: list[tuple[int, Answer]]) -> None:
        if not answers:
            self._lose(request)
            return
        draw = self._draws.random()
        index = request.scheduler.choose(request.spec, self._names, answers, draw, self._now_s)
        node = self._nodes[index]
        request.node = node
        request.attempts += 1
        request.predicted = next(answer[1] for i, answer in answers if i == index)
        at_s = self._now_s + self._config.dispatch_delay_s
        generation = node.generation
        self._after(
            self._config.network_delay_s, partial(self._reserve, request, node, generation, at_s)
        )
        self._at(at_s, partial(self._deliver, request, node, generation))

    def _reserve(self, request: _Open, node: Node, generation: int, at_s: float) -> None:
        still = request.node is node and request.arrival.request_id in self._open
        if still and node.generation == generation and node.answers and request.scheduler.asks:
            node.predictor.reserve(request.spec, request.length_row, at_s, self._now_s)

    def _retry(self, request: _Open) -> None:
        """The attempt failed before a token."""
        self._let_go(request)
        if request.attempts >= self._config.max_attempts:
            self._lose(request)
        else:
            self._place(request)

    def _let_go(self, request: _Open) -> None:
        """The attempt under way ends: scheduler and predictor hear of it."""
        node = request.node
        if node is None:
            raise InvariantError(f"{request.arrival.request_id} was sent nowhere")
        request.scheduler.ended(node.index)
        node.predictor.complete(request.arrival.request_id)
        request.avoid.add(node.index)
        request.node = None

    def _lose(self, request: _Open) -> None:
        del self._open[request.arrival.request_id]
        self._lost.add(request.arrival.request_id)
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        self._tell_ended()

    # Engines.

    def _deliver(self, request: _Open, node: Node, generation: int) -> None:
        if node.generation != generation or not node.up:
            if request.node is node:  # otherwise its end there was told when the engine died
                self._retry(request)
            return
        arrival, instance = request.arrival, node.instance
        instance.deliver(
            arrival.request_id,
            arrival.prompt_tokens,
            arrival.output_tokens,
            self._content(arrival, instance.config.block_size_tokens),
            request.length_row,
            self._now_s,
        )
        if request.scheduler.asks:
            node.predictor.arrived(request.spec)
        if instance.in_step:
            self._changed(node)
        else:
            # Not at once: an engine drains all that has arrived before it schedules.
            self._at(self._now_s, partial(self._wake, node, generation))

    def _content(self, arrival: Arrival, block_size_tokens: int) -> Content | None:
        if not self._config.prefix_cache:
            return None
        return Content(arrival.segments(), arrival.request_id, block_size_tokens)

    def _wake(self, node: Node, generation: int) -> None:
        if node.generation == generation and not node.instance.in_step:
            self._advance(node, generation)

    def _advance(self, node: Node, generation: int) -> None:
        """The engine's oldest step ends, or somebody has come while it was idle."""
        if node.generation != generation:
            return
        finished, next_s = node.instance.advance(self._now_s)
        for seq in finished:
            self._finish(seq, node)
        if next_s is not None:
            self._at(next_s, partial(self._advance, node, generation))
        self._changed(node)

    def _finish(self, seq: EngineSequence, node: Node) -> None:
        request = self._open.pop(seq.request_id)
        arrival, first_s = request.arrival, float(seq.row["first_token_s"])
        check(request.node is node, f"{seq.request_id} ended where it is not served")
        check(
            seq.output_tokens == arrival.output_tokens,
            f"{seq.request_id} ended after {seq.output_tokens}, not {arrival.output_tokens} tokens",
        )
        check(arrival.t_s < first_s <= self._now_s, f"{seq.request_id}: tokens out of time")
        request.scheduler.ended(node.index)
        node.predictor.complete(seq.request_id)
        self._served[seq.request_id] = Served(
            request_id=seq.request_id,
            instance_id=node.instance_id,
            arrival_s=arrival.t_s,
            ttft_s=first_s - arrival.t_s,
            e2e_s=self._now_s - arrival.t_s,
            output_tokens=seq.output_tokens,
            preemptions=seq.preemptions,
            predicted=request.predicted,
            attempts=request.attempts,
        )
        self._one_less()

    def _changed(self, node: Node) -> None:
        node.changed(self._now_s, lambda due_s: self._at(due_s, partial(self._publish, node)))

    def _publish(self, node: Node) -> None:
        node.publish_pending = False
        node.publish(self._now_s)

    def _sample(self) -> None:
        free = (node.instance.free_blocks if node.up else 0 for node in self._nodes)
        self._samples.append((self._now_s, tuple(free)))
        if self._left:
            self._at(self._now_s + self._config.sample_every_s, self._sample)

    # Faults.

    def _fail(self, fault: Fault) -> None:
        if not self._left:
            return  # nobody is there to notice
        node = self._nodes[fault.instance]
        if fault.kind is FaultKind.CRASH:
            if not node.up:
                return
            self._crash(node)
        elif fault.kind is FaultKind.SLOW:
            node.instance.slow_down(fault.factor)
        elif fault.kind is FaultKind.MUTE:
            node.publish(self._now_s)
            node.heard = False
        else:
            node.answers = False
        if fault.for_s < inf:
            self._at(self._now_s + fault.for_s, partial(self._recover, fault))

    def _crash(self, node: Node) -> None:
        for request_id, answering in node.die(self._now_s):
            request = self._open[request_id]
            check(request.node is node, f"{request_id} died where it was not served")
            if answering:
                self._let_go(request)
                self._lose(request)
            else:
                self._retry(request)

    def _recover(self, fault: Fault) -> None:
        if not self._left:
            return
        node = self._nodes[fault.instance]
        if fault.kind is FaultKind.CRASH:
            node.restart(self._now_s)
        elif fault.kind is FaultKind.SLOW:
            node.instance.slow_down(1.0)
        elif fault.kind is FaultKind.MUTE:
            node.heard = True
        else:
            node.answers = True
            node.forget(self._now_s)
        self._changed(node)
