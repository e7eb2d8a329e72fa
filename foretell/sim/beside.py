"""Offline requests beside online ones in virtual time, sent as the batch service sends them.

Engines and predictions are those of a simulated cluster. `foretell.batch.release`, which the
service uses too, decides how many offline requests may be in flight, and when each is sent. A
request goes to the engine with the fewest requests.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol

from foretell.batch.release import LOOK_S, InstanceView, Spacing
from foretell.engine.sequence import Sequence as EngineSequence
from foretell.engine.snapshot_cache import SnapshotCache
from foretell.engine.table import EngineTable
from foretell.length.distribution import certain, knots
from foretell.model import LengthEstimate, RequestSpec
from foretell.sim.config import ClusterConfig
from foretell.sim.events import Events
from foretell.sim.node import Node
from foretell.sim.predictor import Camera, Link
from foretell.workload import Arrival

_NEXT = RequestSpec("", 256, 0, LengthEstimate(256.0, source="hint"))
"""The request whose TTFT is predicted; the same as in a scheduler's status."""
_SENT_S = 0.002
"""Seconds from a request's sender to the engine's queue."""


class Windows(Protocol):
    """How many offline requests may be in flight."""

    @property
    def window(self) -> int: ...

    def observe(self, instances: dict[str, InstanceView], in_flight: int) -> None:
        """Adjust the window to the state of the instances."""
        ...


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """A constant window."""

    window: int

    def observe(self, instances: dict[str, InstanceView], in_flight: int) -> None:
        """Ignore what is seen."""


@dataclass(slots=True)
class Beside:
    """The results of a run; requests are in the order in which they ended."""

    sent_s: list[float] = field(default_factory=list)
    """When each online request was sent."""
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    """Mean time per token of each online request, after the first token."""
    within: list[bool] = field(default_factory=list)
    """Whether each online request met its targets."""
    offline_ended_s: list[float] = field(default_factory=list)
    """When each offline request ended."""
    offline_tokens: list[int] = field(default_factory=list)
    """Output tokens of each offline request."""


class OfflineRun:
    """One run: online arrivals, and as many offline requests as the window allows."""

    def __init__(
        self,
        config: ClusterConfig,
        online: Sequence[Arrival],
        offline: Iterator[Arrival],
        windows: Windows,
        *,
        looked: Callable[[], None] = lambda: None,
        ended: Callable[[str], None] = lambda request_id: None,
    ) -> None:
        """Requests of `offline` are sent in their order, none before its `t_s`. `looked` is called
        after each look at the engines, `ended` when an offline request has ended."""
        self.found = Beside()
        self.events = Events()
        self.in_flight = 0
        self._until_s = inf
        self._table = EngineTable(len(config.instances))
        camera = Camera(self._table, len(config.instances))
        self._nodes = [
            Node(
                index,
                config,
                self._table,
                camera,
                self.events,
                is_awaited=lambda: self.events.now_s < self._until_s,
                counted_s=(0.0, 0.0),
            )
            for index in range(len(config.instances))
        ]
        self._cache = SnapshotCache(knots)
        if not isinstance(windows, FixedWindow):  # other windows need predictions
            for node in self._nodes:
                followed = self._cache.follow(node.instance_id)
                node.follow(Link(followed, knots, self.events, config.network_delay_s))
        self._here = [0] * len(config.instances)
        self._online = {arrival.request_id: arrival for arrival in online}
        self._offline = offline
        self._next = next(offline, None)
        self._sent_s: dict[str, float] = {}
        self._windows, self._spacing = windows, Spacing()
        self._looked, self._tell_ended = looked, ended
        for arrival in online:
            self.events.at(arrival.t_s, partial(self._send, arrival))

    def run(self, until_s: float) -> Beside:
        """Send requests until `until_s`, and wait until all of them have ended."""
        self._until_s = until_s
        self._look()
        self.events.run(self._step)
        return self.found

    def _look(self) -> None:
        now_s = self.events.now_s
        if now_s >= self._until_s:
            return
        due = self._next is not None and self._next.t_s <= now_s
        if isinstance(self._windows, FixedWindow):
            pass  # predicting costs as much as many steps
        elif self.in_flight or due:
            self._windows.observe(self._seen(), self.in_flight)
        else:
            self._windows.observe({}, 0)
        self._looked()
        self._release()
        self.events.at(now_s + LOOK_S, self._look)

    def _seen(self) -> dict[str, InstanceView]:
        """What a scheduler's status would show of each engine."""
        now_s = self.events.now_s
        names = self._cache.fresh([node.instance_id for node in self._nodes], now_s)
        found = self._cache.predict(
            names,
            _NEXT,
            now_s,
            announced_only=True,
            externality=False,
            with_quantiles=False,
        )
        return {
            p.instance_id: InstanceView(
                True,
                p.load.waiting,
                p.ttft_s,
                p.load.running,
                max_num_seqs=p.load.max_num_seqs,
            )
            for p in found
        }

    def _release(self) -> None:
        """Send as many offline requests as the window has room for, spaced."""
        now_s = self.events.now_s
        while (
            self._next is not None
            and self._next.t_s <= now_s < self._until_s
            and self.in_flight < self._windows.window
        ):
            self.in_flight += 1
            at_s = now_s + self._spacing.wait_s(self._windows.window, now_s)
            self.events.at(at_s, partial(self._send, self._next))
            self._next = next(self._offline, None)

    def _send(self, arrival: Arrival) -> None:
        if arrival.t_s >= self._until_s and arrival.request_id in self._online:
            return
        index = min(range(len(self._here)), key=self._here.__getitem__)
        self._here[index] += 1
        self._sent_s[arrival.request_id] = self.events.now_s
        self.events.at(self.events.now_s + _SENT_S, partial(self._deliver, arrival, index))

    def _deliver(self, arrival: Arrival, index: int) -> None:
        node, now_s = self._nodes[index], self.events.now_s
        instance = node.instance
        tokens = arrival.prompt_tokens, arrival.output_tokens
        row = certain(arrival.output_tokens)
        slo, priority = arrival.slo, arrival.priority
        instance.deliver(arrival.request_id, *tokens, None, row, now_s, priority, slo)
        node.changed()
        if not instance.in_step:
            self.events.at(now_s, partial(self._wake, index))

    def _wake(self, index: int) -> None:
        instance = self._nodes[index].instance
        if not instance.in_step:
            instance.wake(self.events.now_s)

    def _step(self, until_s: float) -> bool:
        found = self._table.run(until_s, each=False)
        if found is None:
            return False
        index, self.events.now_s, ended = found
        self._nodes[index].instance.forget(ended)
        self._here[index] -= len(ended)
        for seq in ended:
            self._ended(seq)
        self._release()
        return True

    def _ended(self, seq: EngineSequence) -> None:
        now_s, sent_s = self.events.now_s, self._sent_s.pop(seq.request_id)
        if seq.request_id in self._online:
            first_s = float(seq.row["first_token_s"])
            self.found.sent_s.append(sent_s)
            self.found.ttft_s.append(first_s - sent_s)
            self.found.tpot_s.append((now_s - first_s) / max(1, seq.output_tokens - 1))
            slo = self._online[seq.request_id].slo
            self.found.within.append(slo.met(self.found.ttft_s[-1], self.found.tpot_s[-1]))
        else:
            self.in_flight -= 1
            self._spacing.ended(now_s - sent_s)
            self.found.offline_ended_s.append(now_s)
            self.found.offline_tokens.append(seq.output_tokens)
            self._tell_ended(seq.request_id)
