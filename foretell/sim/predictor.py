"""Predictors in virtual time, which publish their engines' states as real predictors do.

Snapshots are taken directly from the simulated engines. Simulated predictors know their dispatch
delay; real ones learn it.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from foretell.engine.ledger import Ledger
from foretell.engine.prefixes import PrefixIndex
from foretell.engine.published import Published, Snapshot
from foretell.engine.publishing import PrefixNews, Publisher
from foretell.engine.snapshot_cache import FollowedEngine
from foretell.engine.table import EngineTable
from foretell.kernel.layout import INPUT
from foretell.kernel.snapshot_rows import REQUEST, REQUESTS, SNAPSHOT, Snapshots
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import StepTimeModel
from foretell.length.distribution import Row
from foretell.model import BatchShape, LengthEstimate, RequestSpec
from foretell.sim.events import Events, SimTimer, VirtualClock
from foretell.sim.instance import SimInstance

_FIRST_CAPACITY = 256  # requests of an engine


class Camera:
    """Takes the states of a cluster's engines for their predictors."""

    def __init__(self, table: EngineTable, engines: int) -> None:
        self._table = table
        self._taken = Snapshots(
            np.zeros(engines, SNAPSHOT),
            np.zeros((engines, _FIRST_CAPACITY), REQUEST),
            np.zeros((engines, 0), INPUT),
        )
        self._counts = self._taken.headers["figures"][:, REQUESTS]

    def take(self, index: int, most: int, now_s: float) -> tuple[bytes, bytes, bytes]:
        """Header, requests and inputs of a `Snapshot` of an engine with at most `most` requests."""
        if most > self._taken.requests.shape[1]:
            requests = np.zeros((len(self._taken.headers), 2 * most), REQUEST)
            self._taken = self._taken._replace(requests=requests)
        self._table.publish(self._taken, index, now_s)
        headers, requests, _ = self._taken
        count = self._counts[index]
        return headers[index : index + 1].tobytes(), requests[index, :count].tobytes(), b""


class SimPredictor:
    """The predictor of one engine, until either dies. Implements `publishing.Source`."""

    def __init__(
        self,
        index: int,
        instance: SimInstance,
        step_time: StepTimeModel,
        camera: Camera,
        events: Events,
        *,
        dispatch_delay_s: float,
        interval_s: float,
        is_heard: Callable[[], bool],
        is_awaited: Callable[[], bool],
        prefixes: PrefixIndex | None = None,
        learns: bool = False,
    ) -> None:
        """`index` is the engine's own in `camera`. Its steps are believed to take as long as
        `step_time` says, only at first if the predictor `learns`. `interval_s`: `Publisher`'s.
        `is_heard`: whether the engine's snapshots reach its predictor; `is_awaited`: whether
        requests are still to come or to end. Without `prefixes` no hits are expected."""
        self.ledger = Ledger(dispatch_delay_s, prefixes)
        self.publisher = Publisher(_UntilIdle(events, is_awaited), self, interval_s)
        self._index = index
        self._instance = instance
        self._step_time = step_time
        self._learnt = OnlineStepTime(step_time) if learns else None
        self._step: tuple[BatchShape, float, float] | None = None  # the latest seen in flight
        self._camera = camera
        self._events = events
        self._is_heard = is_heard
        self._seen = -1  # the version of the engine that it knows
        self._heard_s = self._taken_s = events.now_s
        self._arrived: dict[str, RequestSpec] = {}
        self._untold: dict[str, int] = {}
        self._taken = b"", b"", b""

    # What the engine tells it.

    def arrived(self, spec: RequestSpec) -> None:
        """Note a request that the engine's next snapshot will show, unless it has ended by then."""
        self._arrived[spec.request_id] = spec

    def served(self, request_id: str, cached_tokens: int, prompt_tokens: int) -> None:
        """Note the cache hits of a request that has ended, as snapshots would have shown them."""
        if self._is_heard():
            self.ledger.admitted(request_id, cached_tokens, prompt_tokens)

    # What schedulers tell it.

    def reserve(self, spec: RequestSpec, length_row: Row, made_s: float) -> None:
        """Reserve for `spec`, which has been on its way since `made_s`."""
        cached_tokens = self.ledger.reserve(spec, length_row, made_s, self._events.now_s)
        if self.ledger.prefixes is not None:
            blocks = cached_tokens // self._instance.config.block_size_tokens
            self._untold[spec.request_id] = blocks

    def complete(self, request_id: str, *, answered: bool) -> None:
        """Note that the request has ended."""
        self.ledger.complete(request_id, answered=answered)
        self._untold.pop(request_id, None)
        self._arrived.pop(request_id, None)

    @property
    def reservations(self) -> int:
        """Dispatched requests that no snapshot has shown yet."""
        return self.ledger.reserved

    # What its publisher asks.

    @property
    def is_busy(self) -> bool:
        return bool(self._taken[1])

    def has_changed(self) -> bool:
        """Whether the engine has changed; if so, take its new state."""
        if not self._is_heard():
            return False
        self._heard_s = self._events.now_s
        version = self._instance.version
        if self._seen == version:
            return False
        self._seen = version
        self._see()
        return True

    def publish(self) -> Snapshot | None:
        if self._seen < 0:
            return None
        now_s, ledger = self._events.now_s, self.ledger
        ledger.expire(now_s)
        return Snapshot(
            self._instance.instance_id,
            self._instance.config,
            self._taken_s,
            *self._taken,
            ledger.rows(),
            ledger.expected(now_s + ledger.dispatch_delay_s),
            ledger.dispatch_delay_s,
            (self._learnt or self._step_time).packed(),
            self._learnt.variances if self._learnt else (0.0, 0.0),
            self._learnt.steps if self._learnt else 0,
        )

    def message(self, snapshot: Snapshot | None) -> Published:
        return Published(self._events.now_s, self._heard_s, snapshot)

    def _see(self) -> None:
        now_s, instance = self._events.now_s, self._instance
        if self.ledger.prefixes is not None:
            self._see_hits(self.ledger.prefixes)
        if self._learnt is not None:
            self._learn(self._learnt, now_s)
        self._taken_s = now_s
        self._taken = self._camera.take(self._index, instance.twin.capacity, now_s)
        if self._arrived:
            for request_id, spec in self._arrived.items():
                if request_id in instance:
                    self.ledger.meet(spec, now_s, now_s, None)
            self._arrived.clear()

    def _learn(self, learnt: OnlineStepTime, now_s: float) -> None:
        """Learn from the step that was in flight when the engine was last seen, if it has ended."""
        if self._step is not None:
            shape, seconds, ends_s = self._step
            if ends_s <= now_s:
                learnt.observe(shape, seconds)
            if not self.is_busy:
                learnt.rest(max(0.0, now_s - max(ends_s, self._taken_s)))
        self._step = self._instance.step_in_flight() if self._instance.in_step else None

    def _see_hits(self, prefixes: PrefixIndex) -> None:
        """Learn what was found cached. The engine's rows of waiting requests get the hits that are
        expected of them, for the snapshot."""
        for request_id in list(self._untold):
            if (seq := self._instance.sequence(request_id)) is not None:
                seq.row["hits"] = self._untold.pop(request_id)
        for request_id in prefixes.pending:
            if (seq := self._instance.sequence(request_id)) is None:
                continue
            if not seq.computed_tokens:
                break  # those behind it are not admitted, either
            self.ledger.admitted(request_id, seq.cached_tokens, seq.prompt_tokens)


class _UntilIdle(VirtualClock):
    """Ignores actions once all requests have ended; publishers would go on forever otherwise."""

    def __init__(self, events: Events, is_awaited: Callable[[], bool]) -> None:
        super().__init__(events)
        self._is_awaited = is_awaited

    def at(self, at_s: float, action: Callable[[], None]) -> SimTimer:
        events = self._events
        return events.at(max(at_s, events.now_s), action if self._is_awaited() else _nothing)


def _nothing() -> None:
    return


class Link:
    """The connection of a scheduler with an engine's predictor, or with the one that replaces it.

    Implements `publishing.Follower`. Messages take `delay_s` in either direction.
    """

    is_settling = False

    def __init__(
        self,
        engine: FollowedEngine,
        length_row: Callable[[LengthEstimate], Row],
        events: Events,
        delay_s: float,
    ) -> None:
        """`length_row` makes a distribution from an estimate, as predictors do."""
        self.engine = engine
        self.changes = -1
        self._length_row = length_row
        self._events = events
        self._delay_s = delay_s
        self._predictor: SimPredictor | None = None
        self._notices = 0
        self._prefixes = PrefixNews()

    def connect(self, predictor: SimPredictor | None) -> None:
        """Connect to another predictor, or to none; messages from and to the former are lost."""
        self._predictor, self._notices, self.changes = predictor, 0, -1
        self._prefixes = PrefixNews()
        if predictor is None:
            return
        now_s = self._events.now_s
        for spec, age_s in self.engine.begin(now_s):
            self._notify(partial(self._reserved, spec, now_s - age_s))
        predictor.publisher.join(self)

    def reserve(self, spec: RequestSpec) -> None:
        """Reserve for a request that the scheduler sends to the engine."""
        now_s = self._events.now_s
        self.engine.reserve(spec, now_s)
        self._notify(partial(self._reserved, spec, now_s))

    def revise(self, spec: RequestSpec) -> None:
        """Update a reserved request of which more is known."""
        now_s = self._events.now_s
        age_s = self.engine.revise(spec, now_s)
        if age_s is not None:
            self._notify(partial(self._reserved, spec, now_s - age_s))

    def ended(self, request_id: str, *, answered: bool) -> None:
        """Tell the predictor that a request has ended."""
        self.engine.ended(request_id)
        self._notify(lambda to: to.complete(request_id, answered=answered))

    def settle(self, now_s: float) -> int:
        return 0

    def publish(self, message: Published, changes: int) -> None:
        predictor = self._predictor
        assert predictor is not None, "nobody publishes"
        if message.snapshot is not None:
            sent_s, heard_s, snapshot, *_ = message  # `_replace` takes several times as long
            message = Published(sent_s, heard_s, snapshot, notices=self._notices)
            self.changes = changes
        message = self._prefixes.add(message, predictor.ledger.prefixes)
        self._events.after(self._delay_s, lambda: self._hear(predictor, message))

    def _hear(self, predictor: SimPredictor, message: Published) -> None:
        if self._predictor is predictor:
            self.engine.hear(message, self._events.now_s)

    def _reserved(self, spec: RequestSpec, made_s: float, predictor: SimPredictor) -> None:
        predictor.reserve(spec, self._length_row(spec.length), made_s)

    def _notify(self, notice: Callable[[SimPredictor], None]) -> None:
        predictor = self._predictor
        if predictor is not None:
            self._events.after(self._delay_s, lambda: self._told(predictor, notice))

    def _told(self, predictor: SimPredictor, notice: Callable[[SimPredictor], None]) -> None:
        if self._predictor is predictor:
            self._notices += 1
            notice(predictor)
            predictor.publisher.changed(self)
