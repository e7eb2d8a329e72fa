"""The instances of a simulated cluster, which come and go where it has a provisioner.

`foretell.provision.Provisioner` decides, as in the provisioner service. This module carries its
decisions out: engines come up after a cold start, and drain before they are removed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from foretell.engine import SnapshotPredictor
from foretell.engine.published import Snapshot
from foretell.length.distribution import certain
from foretell.model import EngineSnapshot, Prediction, RequestSpec, RequestState
from foretell.placement import events
from foretell.provision import (
    Facts,
    InstanceFacts,
    InstancePhase,
    ProvisionConfig,
    ProvisionDecision,
    Provisioner,
)
from foretell.provision.strategies.static import Static
from foretell.sim.config import Provisioning
from foretell.sim.events import Events
from foretell.sim.instance import check
from foretell.sim.node import Node
from foretell.sim.report import FleetSize
from foretell.sim.schedulers import SimSchedulers

DRAINED_EVERY_S = 1.0
"""Pause between two looks at whether a draining engine is empty."""
LENGTHS = 256
"""The most requests between two decisions whose lengths the provisioner gets."""


class Fleet:
    """The instances of a cluster, by the index of their place."""

    def __init__(
        self,
        provisioning: Provisioning | None,
        nodes: Sequence[Node],
        schedulers: SimSchedulers,
        clock: Events,
        *,
        busy: Callable[[], bool],
        expected: Callable[[str], float],
    ) -> None:
        """Without `provisioning` all instances are there all the time. `busy`: whether requests are
        still to come or to end. `expected`: the expected output tokens of a request, by the id that
        its engine knows."""
        places = len(nodes)
        self._provisioning = provisioning or _constant(places)
        strategy = self._provisioning.strategy()
        self._provisioner = Provisioner(strategy, self._provisioning.config)
        self._decides = provisioning is not None
        self._nodes = nodes
        self._schedulers = schedulers
        self._clock = clock
        self._busy = busy
        self._expected = expected
        self._phases: dict[int, tuple[InstancePhase, float]] = {}
        self._starts = count()
        self._runs = [0] * places  # instances that have been in each place
        self._arrived = 0
        self._lengths: list[tuple[int, float]] = []
        self._worst_e2e_s = self._worst_predicted_e2e_s = 0.0
        self.decisions: list[ProvisionDecision] = []
        self.sizes: list[FleetSize] = []

    def begin(self, now_s: float) -> None:
        """Mark the first instances as ready, and schedule the first decision."""
        for node in self._nodes[: self._provisioning.initial]:
            self._phases[node.index] = InstancePhase.READY, now_s
        self._note_size(now_s)
        if self._decides:
            self._clock.at(now_s, self._decide)

    # What happens to requests.

    def arrived(self, spec: RequestSpec) -> None:
        """Note that a scheduler got a request."""
        self._arrived += 1
        if len(self._lengths) < LENGTHS:
            self._lengths.append((spec.prompt_tokens, spec.length.expected_tokens))

    def placed(self, predicted: Prediction | None) -> None:
        """Note the prediction for a request that was sent to an instance."""
        if predicted is not None:
            worst_s = max(self._worst_predicted_e2e_s, predicted.e2e_s)
            self._worst_predicted_e2e_s = worst_s

    def ended(self, e2e_s: float) -> None:
        """Note that a request ended `e2e_s` after its arrival."""
        self._worst_e2e_s = max(self._worst_e2e_s, e2e_s)

    # Decisions.

    def _decide(self) -> None:
        if not self._busy():
            return
        decision = self._provisioner.decide(self._facts())
        self.decisions.append(decision)
        for name in decision.stop:
            self._gone(self._node(name))
        for name in decision.drain:
            self._drain(self._node(name))
        for name in decision.take_back:
            self._take_back(self._node(name))
        for _ in range(decision.start):
            self._start()
        self._note_size(self._clock.now_s)
        self._clock.after(self._provisioning.every_s, self._decide)

    def _facts(self) -> Facts:
        instances = [self._instance_facts(node) for node in self._nodes if self._here(node)]
        facts = Facts(
            self._clock.now_s,
            instances,
            arrived=self._arrived,
            lengths=tuple(self._lengths),
            held=self._schedulers.unplaced,
            worst_e2e_s=self._worst_e2e_s,
            worst_predicted_e2e_s=self._worst_predicted_e2e_s,
        )
        self._arrived, self._worst_e2e_s, self._worst_predicted_e2e_s = 0, 0.0, 0.0
        self._lengths.clear()
        return facts

    def _instance_facts(self, node: Node) -> InstanceFacts:
        phase, since_s = self._phases[node.index]
        if phase is InstancePhase.WARMING:
            return InstanceFacts(self._name(node), phase, since_s)
        engine, twin = node.instance.config, node.instance.twin
        running, outstanding = len(twin.running), self._schedulers.outstanding(node)
        return InstanceFacts(
            self._name(node),
            phase,
            since_s,
            running,
            max(0, outstanding - running),
            engine.max_num_seqs,
            1.0 - twin.free_blocks / engine.total_blocks,
            partial(self._published, node),
        )

    def _published(self, node: Node) -> Snapshot | None:
        if self._phases[node.index][0] is not InstancePhase.READY or not node.up:
            return None
        return snapshot_of(node, self._expected, self._clock.now_s)

    def _name(self, node: Node) -> str:
        """A name that is new for every instance that is started in a place."""
        return f"{node.instance_id}.{self._runs[node.index]}"

    def _node(self, name: str) -> Node:
        (node,) = (n for n in self._nodes if self._here(n) and self._name(n) == name)
        return node

    def _here(self, node: Node) -> bool:
        return node.index in self._phases

    # Instances.

    def _start(self) -> None:
        node = next((node for node in self._nodes if not self._here(node)), None)
        if node is None:
            return  # no place is free; the next decision tries again
        self._runs[node.index] += 1
        self._phases[node.index] = InstancePhase.WARMING, self._clock.now_s
        if next(self._starts) not in self._provisioning.never_ready:
            ready = partial(self._ready, node, self._name(node))
            self._clock.after(self._provisioning.cold_start_s, ready)

    def _ready(self, node: Node, name: str) -> None:
        if not self._here(node) or self._name(node) != name or not self._busy():
            return  # it was stopped meanwhile
        node.present = True
        node.restart(self._clock.now_s)
        self._phases[node.index] = InstancePhase.READY, self._clock.now_s
        self._note_size(self._clock.now_s)
        self._schedulers.tell_all(events.InstanceUp(node.instance_id))

    def _drain(self, node: Node) -> None:
        self._phases[node.index] = InstancePhase.DRAINING, self._clock.now_s
        self._schedulers.tell_all(events.InstanceDraining(node.instance_id))
        self._clock.after(DRAINED_EVERY_S, partial(self._look, node, self._clock.now_s))

    def _take_back(self, node: Node) -> None:
        self._phases[node.index] = InstancePhase.READY, self._clock.now_s
        self._schedulers.tell_all(events.InstanceTakenBack(node.instance_id))

    def _look(self, node: Node, drained_s: float) -> None:
        if self._phases.get(node.index) != (InstancePhase.DRAINING, drained_s):
            return  # it was taken back
        if self._schedulers.outstanding(node) == 0:
            self._schedulers.tell_all(events.InstanceRemoved(node.instance_id))
            left = node.die(self._clock.now_s) if node.up else []
            check(not left, f"{self._name(node)} was stopped with {len(left)} requests")
            self._gone(node)
            self._note_size(self._clock.now_s)
        else:
            self._clock.after(DRAINED_EVERY_S, partial(self._look, node, drained_s))

    def _gone(self, node: Node) -> None:
        node.present = False
        del self._phases[node.index]

    def _note_size(self, now_s: float) -> None:
        phases = [phase for phase, _ in self._phases.values()]
        counts = (
            phases.count(p)
            for p in (InstancePhase.WARMING, InstancePhase.READY, InstancePhase.DRAINING)
        )
        size = FleetSize(now_s, *counts)
        if not self.sizes or replace(self.sizes[-1], at_s=now_s) != size:
            self.sizes.append(size)

    def instance_s(self, until_s: float) -> float:
        """Seconds of instances, warming and draining ones included, up to `until_s`."""
        ends_s = [size.at_s for size in self.sizes[1:]] + [until_s]
        spans = zip(self.sizes, ends_s, strict=True)
        return sum(s.instances * max(0.0, min(end_s, until_s) - s.at_s) for s, end_s in spans)


def snapshot_of(node: Node, expected: Callable[[str], float], now_s: float) -> Snapshot | None:
    """An engine's state as a predictor would publish it, with the expected lengths of its requests.

    Steps in flight are left out, as if they were still to be scheduled.
    """
    twin, config = node.instance.twin, node.instance.config
    running, waiting = (
        [
            RequestState(
                seq.request_id,
                seq.request_id,
                seq.prompt_tokens,
                seq.output_tokens,
                min(seq.computed_tokens, seq.prompt_tokens + seq.output_tokens - 1),
                config.max_model_len,
                seq.arrival_s,
                predicted_output_tokens=expected(seq.request_id),
            )
            for seq in sequences
        ]
        for sequences in (twin.running, twin.waiting)
    )
    used = sum(config.blocks_for(request.computed_tokens) for request in running)
    state = EngineSnapshot(
        node.instance_id,
        "",
        node.instance.version,
        now_s,
        now_s,
        config,
        config.total_blocks - used,
        running,
        waiting,
        (),
        (),
    )
    predictor = SnapshotPredictor(
        dispatch_delay_s=0.0,
        length_row=lambda estimate: certain(estimate.expected_tokens),
        prior_tokens=1.0,
    )
    predictor.hear(state)
    return predictor.publish(node.believed_step_time, now_s)


def _constant(instances: int) -> Provisioning:
    config = ProvisionConfig(minimum=instances, maximum=instances)
    return Provisioning(Static, config, instances, cold_start_s=0.0)
