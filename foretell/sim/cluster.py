"""A whole cluster in virtual time: arrivals, policy, predictors, engines, one event queue.

Everything that decides is the code that serves: the policies of `foretell.policy`, the twin of
`foretell.engine` and its forecast. Only time is made up. Equal inputs give equal reports.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

from foretell.engine import Sequence as EngineSequence
from foretell.latency.linear import StepTimeModel
from foretell.model import EngineConfig, LengthEstimate, Prediction, RequestSpec
from foretell.policy import Candidate, Needs, Policy
from foretell.sim.instance import Instance, InvariantError, check
from foretell.sim.predictor import SimPredictor
from foretell.sim.report import Report, Served
from foretell.workload import Arrival, Draws

MAX_EVENTS = 50_000_000
"""Events after which a run counts as endless; a bound, not a tuning knob."""

_MINUTE_S = 60.0


def true_length(arrival: Arrival) -> LengthEstimate:
    """An oracle: the length the request will really have."""
    return LengthEstimate(float(arrival.output_tokens), source="hint")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What is simulated. All instances share one step-time model."""

    engines: tuple[EngineConfig, ...]
    step_time: StepTimeModel
    """How long the engines' steps really take."""
    believed_step_time: StepTimeModel | None = None
    """What the predictors take it to be; None: the truth."""
    estimate: Callable[[Arrival], LengthEstimate] = true_length
    publish_interval_s: float = 0.0
    """Least time between two snapshots of an engine; 0 publishes every change."""
    dispatch_delay_s: float = 0.002
    silent_ratio: float = 0.0
    """How often a predictor misses its deadline."""
    expect_arrivals: bool = True
    """Predictors reckon with requests that will come later."""


@dataclass(slots=True)
class _Node:
    """An instance with what the scheduler and its predictor know of it."""

    instance: Instance
    predictor: SimPredictor
    outstanding: int = 0
    dispatched_s: deque[float] = field(default_factory=deque)
    publish_pending: bool = False


@dataclass(slots=True)
class _Open:
    """A request between arrival and last token."""

    arrival: Arrival
    node: _Node
    predicted: Prediction | None
    first_token_s: float | None = None


def simulate(
    config: ClusterConfig, arrivals: Sequence[Arrival], policy: Policy, draws: Draws
) -> Report:
    """Serve `arrivals` to the last token.

    Raises ValueError for a request that some engine could never serve, and InvariantError when
    the cluster breaks one of its invariants.
    """
    if not config.engines:
        raise ValueError("a cluster needs at least one engine")
    for arrival in arrivals:
        for engine in config.engines:
            _check_fits(arrival, engine)
    return _Cluster(config, policy, draws).run(arrivals)


def _check_fits(arrival: Arrival, engine: EngineConfig) -> None:
    tokens = arrival.prompt_tokens + arrival.output_tokens
    if arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
        raise ValueError(f"{arrival} needs at least one prompt and one output token")
    if tokens > engine.max_model_len:
        raise ValueError(f"{arrival} exceeds max_model_len {engine.max_model_len}")
    if engine.blocks_for(tokens) > engine.total_blocks:
        raise ValueError(f"{arrival} needs more than {engine.total_blocks} blocks")


class _Cluster:
    def __init__(self, config: ClusterConfig, policy: Policy, draws: Draws) -> None:
        self._config = config
        self._policy = policy
        self._draws = draws
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()  # events of one instant run in the order they were made
        self._open: dict[str, _Open] = {}
        self._served: dict[str, Served] = {}
        self._nodes: dict[str, _Node] = {}
        for index, engine in enumerate(config.engines):
            instance = Instance(f"engine-{index}", engine, config.step_time)
            predictor = SimPredictor(
                instance.snapshot(0.0),
                config.believed_step_time or config.step_time,
                dispatch_delay_s=config.dispatch_delay_s,
                every_step_published=config.publish_interval_s == 0,
                expect_arrivals=config.expect_arrivals,
            )
            self._nodes[instance.instance_id] = _Node(instance, predictor)

    def run(self, arrivals: Sequence[Arrival]) -> Report:
        """Process events until none is left; then nothing may be left undone."""
        for arrival in arrivals:
            self._at(arrival.t_s, partial(self._arrive, arrival))
        for _ in range(MAX_EVENTS):
            if not self._events:
                break
            at_s, _, action = heappop(self._events)
            check(at_s >= self._now_s, f"time went from {self._now_s} back to {at_s}")
            self._now_s = at_s
            action()
        else:
            raise InvariantError(f"no end after {MAX_EVENTS} events")
        check(not self._open, f"never ended: {sorted(self._open)}")
        for node in self._nodes.values():
            node.instance.check_empty()
            check(
                node.predictor.load(self._now_s).reserved == 0, "a reservation outlived its request"
            )
            check(node.outstanding == 0, "the scheduler lost count")
        served = tuple(self._served[arrival.request_id] for arrival in arrivals)
        steps = sum(node.instance.steps for node in self._nodes.values())
        return Report(served, max((r.arrival_s + r.e2e_s for r in served), default=0.0), steps)

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        heappush(self._events, (at_s, next(self._order), action))

    def _arrive(self, arrival: Arrival) -> None:
        """The scheduler places a request."""
        check(
            arrival.request_id not in self._open and arrival.request_id not in self._served,
            f"{arrival.request_id} arrived twice",
        )
        spec = RequestSpec(
            request_id=arrival.request_id,
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=0,
            length=self._config.estimate(arrival),
        )
        candidates = {
            instance_id: self._candidate(node, spec) for instance_id, node in self._nodes.items()
        }
        chosen = self._policy.choose(spec, list(candidates.values()), self._draws.random())
        node = self._nodes[chosen]
        node.outstanding += 1
        node.dispatched_s.append(self._now_s)
        node.predictor.reserve(spec, self._now_s)
        self._open[arrival.request_id] = _Open(arrival, node, candidates[chosen].prediction)
        self._at(
            self._now_s + self._config.dispatch_delay_s, partial(self._deliver, node, arrival, spec)
        )

    def _candidate(self, node: _Node, spec: RequestSpec) -> Candidate:
        while node.dispatched_s and node.dispatched_s[0] <= self._now_s - _MINUTE_S:
            node.dispatched_s.popleft()
        needs, load, prediction = self._policy.needs, None, None
        silent = self._draws.random() < self._config.silent_ratio
        if needs is Needs.LOAD and not silent:
            load = node.predictor.load(self._now_s)
        elif needs in (Needs.PREDICTION, Needs.EXTERNALITY) and not silent:
            externality = needs is Needs.EXTERNALITY
            prediction = node.predictor.predict(spec, self._now_s, externality=externality)
            load = prediction.load
        return Candidate(
            instance_id=node.instance.instance_id,
            outstanding=node.outstanding,
            dispatched_last_minute=len(node.dispatched_s),
            load=load,
            prediction=prediction,
        )

    def _deliver(self, node: _Node, arrival: Arrival, spec: RequestSpec) -> None:
        seq = EngineSequence(
            request_id=arrival.request_id,
            prompt_tokens=arrival.prompt_tokens,
            stop_after=arrival.output_tokens,
            max_tokens=0,
            arrival_s=self._now_s,
        )
        node.instance.deliver(seq, spec.length.expected_tokens)
        if node.instance.in_step:
            self._publish(node)
        else:
            # Not at once: an engine drains all that has arrived before it schedules.
            self._at(self._now_s, partial(self._wake, node))

    def _wake(self, node: _Node) -> None:
        if not node.instance.in_step:
            self._start_step(node)

    def _start_step(self, node: _Node) -> None:
        ends_s = node.instance.start_step(self._now_s)
        if ends_s is not None:
            self._at(ends_s, partial(self._end_step, node))
        self._publish(node)

    def _end_step(self, node: _Node) -> None:
        outcome = node.instance.end_step()
        for seq in outcome.sampled:
            request = self._open.get(seq.request_id)
            if request is None or request.node is not node:
                raise InvariantError(f"{seq.request_id} got a token where it is not served")
            if request.first_token_s is None:
                request.first_token_s = self._now_s
        for seq in outcome.finished:
            self._finish(seq)
        self._start_step(node)

    def _finish(self, seq: EngineSequence) -> None:
        request = self._open.pop(seq.request_id)
        arrival, node = request.arrival, request.node
        first_s = request.first_token_s
        if first_s is None:
            raise InvariantError(f"{seq.request_id} ended without a first token")
        check(
            seq.output_tokens == arrival.output_tokens,
            f"{seq.request_id} ended after {seq.output_tokens}, not {arrival.output_tokens} tokens",
        )
        check(arrival.t_s < first_s <= self._now_s, f"{seq.request_id}: tokens out of time")
        node.outstanding -= 1
        node.predictor.complete(seq.request_id)
        self._served[seq.request_id] = Served(
            request_id=seq.request_id,
            instance_id=node.instance.instance_id,
            arrival_s=arrival.t_s,
            ttft_s=first_s - arrival.t_s,
            e2e_s=self._now_s - arrival.t_s,
            output_tokens=seq.output_tokens,
            preemptions=seq.preemptions,
            predicted=request.predicted,
        )

    def _publish(self, node: _Node) -> None:
        """Tell the predictor now, or as soon as the publish interval allows."""
        due_s = node.predictor.published_s + self._config.publish_interval_s
        if self._now_s >= due_s:
            node.predictor.hear(node.instance.snapshot(self._now_s))
        elif not node.publish_pending:
            node.publish_pending = True
            self._at(due_s, partial(self._publish_pending, node))

    def _publish_pending(self, node: _Node) -> None:
        node.publish_pending = False
        self._publish(node)
