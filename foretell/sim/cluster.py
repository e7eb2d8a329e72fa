"""A whole cluster in virtual time: arrivals, schedulers, predictors, engines, one event queue.

All decisions are made by the code that serves real requests: the placement core, its policies, the
twin's kernel and forecasts. Only time is virtual. Equal inputs give equal reports.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from math import inf

from foretell.engine import Content
from foretell.engine import Sequence as EngineSequence
from foretell.engine.table import EngineTable
from foretell.kernel.compiled import ImpossibleState
from foretell.model import EngineConfig, RequestSpec
from foretell.placement import events
from foretell.policy import Policy
from foretell.sim.config import ClusterConfig, Fault, FaultKind
from foretell.sim.events import Events
from foretell.sim.fleet import Fleet
from foretell.sim.instance import InvariantError, check
from foretell.sim.node import Node
from foretell.sim.predictor import Camera
from foretell.sim.report import Report, ServedRequest, free_block_moments
from foretell.sim.schedulers import Open, SimSchedulers, Ways
from foretell.workload import Arrival, Draws


def simulate(
    config: ClusterConfig,
    arrivals: Sequence[Arrival],
    policies: Sequence[Policy],
    draws: Draws,
    *,
    ended: Callable[[], None] = lambda: None,
) -> Report:
    """Serve `arrivals` to the last token, with one scheduler for each of `policies`.

    `ended` is called whenever a request has ended. Raises ValueError for a request that some engine
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
        self._arrivals = sorted(arrivals, key=lambda arrival: arrival.t_s)
        self._coming = iter(self._arrivals)
        self._next = next(self._coming, None)
        self._tell_ended = ended
        self._events = Events()
        self._arrived: set[str] = set()
        self._sent: dict[str, Open] = {}  # by the id of the attempt, which the engine knows
        self._served: dict[str, ServedRequest] = {}
        self._unstarted: list[dict[str, Open]] = [{} for _ in config.instances]
        self._lost: set[str] = set()
        self._rejected: set[str] = set()
        self._left = len(arrivals)
        self._samples: list[tuple[float, tuple[int, ...]]] = []
        self._first_s = self._arrivals[0].t_s if arrivals else 0.0
        self._last_s = self._arrivals[-1].t_s if arrivals else 0.0
        self._table = EngineTable(len(config.instances))
        camera = Camera(self._table, len(config.instances))
        self._nodes = [
            Node(
                index,
                config,
                self._table,
                camera,
                self._events,
                is_awaited=lambda: self._left > 0,
                counted_s=(self._first_s, self._last_s),
                present=config.provisioning is None or index < config.provisioning.initial,
            )
            for index in range(len(config.instances))
        ]
        ways = Ways(self._deliver, self._lose, self._reject, self._withdraw)
        self._schedulers = SimSchedulers(config, policies, self._nodes, draws, self._events, ways)
        self._fleet = Fleet(
            config.provisioning,
            self._nodes,
            self._schedulers,
            self._events,
            busy=lambda: self._left > 0,
            expected=lambda engine_id: self._sent[engine_id].spec.length.expected_tokens,
        )

    def run(self) -> Report:
        """Process events until none is left, and check that nothing is left undone."""
        for fault in self._config.faults:
            self._events.at(fault.at_s, partial(self._fail, fault))
        if self._config.sample_every_s > 0:
            self._events.at(self._first_s, self._sample)
        self._fleet.begin(self._first_s)
        self._events.run(self._arrive_or_step)
        self._check_all_ended()
        return self._report()

    def _check_all_ended(self) -> None:
        check(not self._sent, f"never ended: {sorted(self._sent)}")
        check(self._left == 0, f"{self._left} requests ended neither well nor badly")
        for node in self._nodes:
            if node.up:
                node.instance.check_empty()
                left = node.predictor.reservations if node.predictor is not None else 0
                check(left == 0, "a reservation outlived its request")
        self._schedulers.check_idle()

    def _report(self) -> Report:
        served = tuple(
            self._served[arrival.request_id]
            for arrival in self._arrivals
            if arrival.request_id in self._served
        )
        lost = tuple(a.request_id for a in self._arrivals if a.request_id in self._lost)
        rejected = tuple(a.request_id for a in self._arrivals if a.request_id in self._rejected)
        ended = len(served) + len(lost) + len(rejected)
        check(ended == len(self._arrivals), "a request ended twice, or never did")
        last_s = max((r.arrival_s + r.e2e_s for r in served), default=self._first_s)
        free = chain.from_iterable(node.free_blocks(self._events.now_s) for node in self._nodes)
        return Report(
            served,
            lost,
            last_s - self._first_s,
            sum(node.steps for node in self._nodes),
            *free_block_moments(free),
            samples=tuple(self._samples),
            rejected=rejected,
            computed_tokens=sum(node.computed_tokens for node in self._nodes),
            instance_s=self._fleet.instance_s(self._last_s),
            sizes=tuple(self._fleet.sizes),
            decisions=tuple(self._fleet.decisions),
        )

    # Requests.

    def _arrive_or_step(self, until_s: float) -> bool:
        """Let a request arrive or run engines; False if no request arrives or ends by `until_s`."""
        coming = self._next
        arrives_s = inf if coming is None else coming.t_s
        if self._run_engines(min(until_s, arrives_s)):
            return True
        if coming is None or arrives_s > until_s:
            return False
        self._pass_to(arrives_s)
        self._next = next(self._coming, None)
        self._arrive(coming)
        return True

    def _pass_to(self, now_s: float) -> None:
        check(now_s >= self._events.now_s, f"time went from {self._events.now_s} back to {now_s}")
        self._events.now_s = now_s

    def _arrive(self, arrival: Arrival) -> None:
        """Give a request to one of the schedulers."""
        key = arrival.request_id
        check(key not in self._arrived, f"{key} arrived twice")
        names_prefix = self._config.prefix_cache and self._config.predict_hits
        prefix, chunk_tokens = arrival.hashed_prefix() if names_prefix else ((), 0)
        spec = RequestSpec(
            key,
            arrival.prompt_tokens,
            0,
            self._config.estimate(arrival),
            priority=arrival.priority,
            prefix=prefix,
            prefix_chunk_tokens=chunk_tokens,
            slo=arrival.slo,
        )
        self._arrived.add(key)
        self._fleet.arrived(spec)
        self._schedulers.arrive(arrival, spec)

    def _lose(self, request: Open) -> None:
        request.ended = True
        self._lost.add(request.arrival.request_id)
        self._one_less()

    def _reject(self, request: Open) -> None:
        """Note a request that was never placed; only its scheduler knows of it."""
        check(request.node is None, f"{request.arrival.request_id} was admitted before")
        request.ended = True
        self._rejected.add(request.arrival.request_id)
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        self._tell_ended()

    # Engines.

    def _deliver(self, request: Open, node: Node, generation: int) -> None:
        if node.generation != generation or not node.up:
            if request.node is node:  # otherwise this attempt ended when the engine died
                self._schedulers.retry(request)
            return
        arrival, instance, engine_id = request.arrival, node.instance, request.spec.request_id
        self._sent[engine_id] = request
        self._unstarted[node.index][engine_id] = request
        self._fleet.placed(request.predicted)
        instance.deliver(
            engine_id,
            arrival.prompt_tokens,
            arrival.output_tokens,
            self._content(arrival, instance.config.block_size_tokens),
            request.length_row,
            self._events.now_s,
            request.spec.priority,
            arrival.slo,
        )
        if node.predictor is not None:
            node.predictor.arrived(request.spec)
        self._changed(node)
        if not instance.in_step:
            # Not at once: an engine takes in all requests that have arrived before it schedules.
            self._events.at(self._events.now_s, partial(self._wake, node, generation))

    def _withdraw(self, request: Open, node: Node) -> bool:
        """Take a request back from an engine, unless a part of it was computed."""
        engine_id = request.spec.request_id
        if not node.instance.take_back(engine_id, self._events.now_s):
            return False
        del self._sent[engine_id]
        self._changed(node)
        return True

    def _content(self, arrival: Arrival, block_size_tokens: int) -> Content | None:
        if not self._config.prefix_cache:
            return None
        return Content(arrival.segments(), arrival.request_id, block_size_tokens)

    def _wake(self, node: Node, generation: int) -> None:
        if node.generation == generation and not node.instance.in_step:
            node.instance.wake(self._events.now_s)
            self._changed(node)

    def _run_engines(self, until_s: float) -> bool:
        """Run steps until one ends a request; False if none does up to `until_s`."""
        try:
            found = self._table.run(until_s, each=False)
        except ImpossibleState as error:
            name = self._nodes[self._table.stepped].instance_id
            raise InvariantError(f"{name}: {error}") from error
        if found is None:
            return False
        index, now_s, finished = found
        self._pass_to(now_s)
        node = self._nodes[index]
        node.instance.forget(finished)
        for seq in finished:
            self._finish(seq, node)
        self._changed(node)
        return True

    def _finish(self, seq: EngineSequence, node: Node) -> None:
        request = self._sent.pop(seq.request_id)
        arrival, first_s = request.arrival, float(seq.row["first_token_s"])
        check(request.node is node, f"{seq.request_id} ended where it is not served")
        check(
            seq.output_tokens == arrival.output_tokens,
            f"{seq.request_id} ended after {seq.output_tokens}, not {arrival.output_tokens} tokens",
        )
        check(arrival.t_s < first_s <= self._events.now_s, f"{seq.request_id}: tokens out of time")
        request.ended = True
        node.served(seq)
        request.scheduler.ended(request)
        self._fleet.ended(self._events.now_s - arrival.t_s)
        self._served[arrival.request_id] = ServedRequest(
            request_id=arrival.request_id,
            instance_id=node.instance_id,
            arrival_s=arrival.t_s,
            ttft_s=first_s - arrival.t_s,
            e2e_s=self._events.now_s - arrival.t_s,
            output_tokens=seq.output_tokens,
            preemptions=seq.preemptions,
            predicted=request.predicted,
            attempts=request.attempts,
            placed_s=request.placed_s,
            prompt_tokens=seq.prompt_tokens,
            cached_tokens=seq.cached_tokens,
            slo=arrival.slo,
        )
        self._one_less()

    def _changed(self, node: Node) -> None:
        self._tell_started(node)
        node.changed()

    def _tell_started(self, node: Node) -> None:
        """Tell schedulers of new first tokens: as good as doing so at each step, but cheaper."""
        unstarted = self._unstarted[node.index]
        for engine_id in list(unstarted):
            seq = node.instance.sequence(engine_id)
            if seq is None:
                del unstarted[engine_id]
            elif seq.row["first_token_s"] < inf:
                request = unstarted.pop(engine_id)
                request.scheduler.tell(events.Started(request.arrival.request_id))

    def _sample(self) -> None:
        present = (node for node in self._nodes if node.present)
        free = (node.instance.twin.free_blocks if node.up else 0 for node in present)
        self._samples.append((self._events.now_s, tuple(free)))
        if self._left:
            self._events.at(self._events.now_s + self._config.sample_every_s, self._sample)

    # Faults.

    def _fail(self, fault: Fault) -> None:
        if not self._left:
            return  # all requests have ended
        node = self._nodes[fault.instance]
        if fault.kind is FaultKind.CRASH:
            if not node.up:
                return
            self._crash(node)
        elif fault.kind is FaultKind.SLOW:
            node.instance.slow_down(fault.factor)
        elif fault.kind is FaultKind.MUTE:
            node.heard = False
        else:
            node.end_predictor()
        if fault.for_s < inf:
            self._events.at(self._events.now_s + fault.for_s, partial(self._recover, fault))

    def _crash(self, node: Node) -> None:
        left = node.die(self._events.now_s)
        self._schedulers.tell_all(events.InstanceDown(node.instance_id))
        for request_id, answering in left:
            request = self._sent.pop(request_id)
            check(request.node is node, f"{request_id} died where it was not served")
            if answering:
                request.scheduler.ended(request, broken=True)
                self._lose(request)
            else:
                self._schedulers.retry(request)

    def _recover(self, fault: Fault) -> None:
        if not self._left:
            return
        node = self._nodes[fault.instance]
        if fault.kind is FaultKind.CRASH:
            if node.up or not node.present:
                return  # the crashed engine is gone for good, or another one has replaced it
            node.restart(self._events.now_s)
            self._schedulers.tell_all(events.InstanceUp(node.instance_id))
        elif fault.kind is FaultKind.SLOW:
            node.instance.slow_down(1.0)
        elif fault.kind is FaultKind.MUTE:
            node.heard = True
        elif node.up:
            node.begin_predictor()
        self._changed(node)
