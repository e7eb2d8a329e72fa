"""The latest snapshots of the engines that a scheduler places requests on.

Predictors publish snapshots of their engines (`engine.published`). A follower predicts for a new
request without a network call, in one compiled call for all candidates. Its own requests count at
once, those of other schedulers as soon as the engine's predictor has reported them.

Times are of the follower's clock. Those of snapshots are shifted to it, since hosts' clocks differ.
"""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from foretell.engine.forecast import Forecaster
from foretell.engine.hindsight import Exposure, LengthRow, PredictionInputs
from foretell.engine.predictor import EnginePredictor, Lane, lanes, predict
from foretell.engine.published import Published, Snapshot
from foretell.engine.questions import arrival, shifted
from foretell.engine.underway import Underway
from foretell.model import Load, Prediction, RequestSpec

STALE_S = 2.5
"""Seconds without a message after which a snapshot is stale; predictors send one every second."""
_CLOCKS = 16
"""The latest messages, the quickest of which tells how the two clocks differ."""
_ESTIMATES = 256
"""The size of the cache of distributions by estimate."""
_CLOCK_JUMP_S = 1.0


class FollowedEngine:
    """One engine in the cache: its latest snapshot, and the follower's own requests."""

    def __init__(self, forecaster: Forecaster, index: int, length_row: LengthRow) -> None:
        self.index = index
        self.answer_delay_s = 0.0
        """Seconds from a token in the engine to the follower; predictions include it."""
        self._forecaster = forecaster
        self._predictor: EnginePredictor | None = None
        self._length_row = length_row
        self._underway = Underway()
        self._notices = 0
        self._open: dict[str, tuple[RequestSpec, float]] = {}
        self._shifts: deque[float] = deque(maxlen=_CLOCKS)
        self._shift_now_s = 0.0
        self._told_s = self._heard_s = float("-inf")
        self.worked_s = float("-inf")
        """When the engine was last heard to have made a step."""
        self._exposure: Exposure | None = None
        self._snapshot: tuple[Snapshot, float] | None = None  # and the shift of its instants
        # Messages are taken in lazily, when the engine is read: most are replaced unread.
        self._is_news = self._is_new_snapshot = False
        self._known_s = float("-inf")

    @property
    def predictor(self) -> EnginePredictor | None:
        """The engine as last heard of; None before the first snapshot."""
        if self._is_news:
            self._take_in()
        return self._predictor

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest one; its instants are of the predictor's clock."""
        return None if self._snapshot is None else self._snapshot[0]

    def exposure(self) -> Exposure:
        """The engine's part of the prediction inputs as of now. There must be a snapshot."""
        if self._exposure is None:
            assert self._snapshot is not None, "there is no snapshot yet"
            self._exposure = Exposure(*self._snapshot, self._known_s, self._underway.rows)
        return self._exposure

    @property
    def believed(self) -> EnginePredictor:
        """The predictor with the current answer delay. There must be a snapshot."""
        predictor = self.predictor
        assert predictor is not None, "an instance without a snapshot is not fresh"
        predictor.answer_delay_s = self.answer_delay_s
        return predictor

    def age_s(self, now_s: float) -> float:
        """Seconds since the engine was last heard from, according to its predictor."""
        return max(0.0, now_s - self._heard_s)

    def is_fresh(self, now_s: float) -> bool:
        """Whether there is a snapshot and it is not stale."""
        return self._snapshot is not None and now_s - self._told_s <= STALE_S

    def begin(self, now_s: float) -> list[tuple[RequestSpec, float]]:
        """Begin a new stream; return the open requests with their ages in seconds.

        They must be sent to the predictor as the first notices of the stream. The old snapshot is
        used until it is stale.
        """
        self._notices = 0
        self._shifts.clear()
        self._underway.begin()
        self._exposure = None
        again = list(self._open.values())
        for spec, at_s in again:
            self._announce(spec, at_s)
        return [(spec, max(0.0, now_s - at_s)) for spec, at_s in again]

    def reserve(self, request: RequestSpec, now_s: float) -> None:
        """Note that the follower sends `request` to this engine and notifies its predictor."""
        self._open[request.request_id] = request, now_s
        self._announce(request, now_s)

    def revise(self, request: RequestSpec, now_s: float) -> float | None:
        """Replace a request of which more is known than when it was sent.

        Returns how many seconds ago it was sent, to notify the predictor; None if it has ended and
        no notice is due.
        """
        if request.request_id not in self._open:
            return None
        _, at_s = self._open[request.request_id]
        self._notices += 1
        self._open[request.request_id] = request, at_s
        self._underway.revise(request, arrival(request, self._length_row(request.length), at_s))
        self._exposure = None
        return max(0.0, now_s - at_s)

    def ended(self, request_id: str) -> None:
        """Note that a request has ended and that the follower notifies the predictor."""
        self._notices += 1
        self._open.pop(request_id, None)
        self._underway.forget(request_id)
        self._exposure = None

    def hear(self, message: Published, now_s: float) -> None:
        """Take in a message of the predictor. Its snapshot must have been checked."""
        shift_s, snapshot = self._shift_s(now_s - message.sent_s), message.snapshot
        self._exposure, underway = None, self._underway
        if snapshot is not None:
            if self._snapshot is not None and snapshot.taken_s != self._snapshot[0].taken_s:
                self.worked_s = now_s
            self._snapshot, self._is_new_snapshot = (snapshot, shift_s), True
            underway.tell(shifted(snapshot.reservations, shift_s), message.notices)
            underway.expected = shifted(snapshot.expected, shift_s)
            underway.dispatch_delay_s = snapshot.dispatch_delay_s
            config = snapshot.config
            underway.block_size_tokens = config.block_size_tokens * config.enable_prefix_caching
        self._heard_s, self._told_s = message.heard_s + shift_s, now_s
        self._known_s = message.sent_s - message.silent_s + shift_s
        self._is_news = True
        if snapshot is not None and snapshot.config.steps_with:
            self._take_in()  # forecasts of the other ranks of its deployment read it, too
        if message.all_prefixes:
            underway.prefixes = set()
        if message.cached_prefixes or message.evicted_prefixes:
            underway.prefixes.update(message.cached_prefixes)
            underway.prefixes.difference_update(message.evicted_prefixes)

    def _announce(self, request: RequestSpec, at_s: float) -> None:
        self._notices += 1
        # The predictor's rows will state the expected prefix-cache hits; so must this row.
        cached_tokens = self._underway.cached_tokens(request)
        row = arrival(request, self._length_row(request.length), at_s, cached_tokens=cached_tokens)
        self._underway.announce(self._notices, request, row)
        self._exposure = None

    def _shift_s(self, latest_s: float) -> float:
        """The seconds to add to the predictor's times, by the quickest of the latest messages."""
        shifts = self._shifts
        if shifts and abs(latest_s - self._shift_now_s) > _CLOCK_JUMP_S:
            shifts.clear()  # a clock was set, or this process was suspended
        shifts.append(latest_s)
        self._shift_now_s = min(shifts)
        return self._shift_now_s

    def _take_in(self) -> None:
        self._is_news = False
        if self._snapshot is None:
            return
        (snapshot, shift_s), forecaster, index = self._snapshot, self._forecaster, self.index
        predictor = self._predictor
        if predictor is None:
            names = snapshot.instance_id, snapshot.config
            predictor = EnginePredictor(
                forecaster, index, *names, self._underway, snapshot.step_time
            )
            self._predictor = predictor
        if self._is_new_snapshot:
            self._is_new_snapshot = False
            if predictor.engine_config is not snapshot.config:  # configurations rarely change
                predictor.configure(snapshot.config)
            learnt = snapshot.step_error, snapshot.calibration_steps
            predictor.believe(snapshot.step_time, *learnt)
            forecaster.put(index, snapshot.header, snapshot.requests, snapshot.inputs, shift_s)
        forecaster.still_true(index, self._known_s)
        predictor.published()


class SnapshotCache:
    """The followed engines. Not thread-safe. Instance ids are chosen by the caller."""

    def __init__(self, length_row: LengthRow) -> None:
        """`length_row` makes a distribution of an estimate (`foretell.length.distribution`)."""
        # Cached: a request is predicted, predicted again and announced with the same estimate.
        self._length_row = lru_cache(maxsize=_ESTIMATES)(length_row)
        self._forecaster = Forecaster(0)
        self._engines: dict[str, FollowedEngine] = {}
        self._free: list[int] = []

    def __getitem__(self, instance_id: str) -> FollowedEngine:
        return self._engines[instance_id]

    def follow(self, instance_id: str) -> FollowedEngine:
        """Add an engine to the cache and return it."""
        index = self._free.pop() if self._free else self._forecaster.add()
        engine = FollowedEngine(self._forecaster, index, self._length_row)
        self._engines[instance_id] = engine
        return engine

    def leave(self, instance_id: str) -> None:
        """Remove an engine from the cache."""
        index = self._engines.pop(instance_id).index
        self._forecaster.forget(index)
        self._free.append(index)

    def fresh(self, instance_ids: Sequence[str], now_s: float) -> list[str]:
        """The instances among `instance_ids` whose snapshots are not stale."""
        engines = self._engines
        return [i for i in instance_ids if i in engines and engines[i].is_fresh(now_s)]

    def inputs(self, instance_ids: Sequence[str], now_s: float) -> PredictionInputs:
        """The inputs of predictions made now for these instances, which must be fresh."""
        engines = [self._engines[instance_id] for instance_id in instance_ids]
        exposures = [engine.exposure() for engine in engines]
        return PredictionInputs(now_s, exposures, [engine.answer_delay_s for engine in engines])

    def load(self, instance_id: str) -> Load:
        """The load of a fresh instance, reservations included."""
        return self._predictor(instance_id).load()

    def wait_s(self, instance_id: str, request: RequestSpec, now_s: float) -> float | None:
        """Seconds until the first token of a request that was sent to a fresh instance; None if it
        is not known to wait in the engine's queue any more."""
        return self._predictor(instance_id).wait_s(request, self._length_row(request.length), now_s)

    def lanes(self, instance_id: str, now_s: float) -> list[Lane]:
        """The sequences of a fresh instance and when each is expected to end."""
        return lanes(self._predictor(instance_id), now_s)

    def has_begun(self, instance_id: str, request_id: str) -> bool:
        """Whether a fresh instance is known to have begun that request."""
        return self._predictor(instance_id).has_begun(request_id)

    def predict(
        self,
        instance_ids: Sequence[str],
        request: RequestSpec,
        now_s: float,
        *,
        announced_only: bool,
        externality: bool,
        with_quantiles: bool,
        single: bool = False,
    ) -> list[Prediction]:
        """Predict `request` on each of the instances, which must be fresh, if dispatched now.

        The options are those of `foretell.engine.predictor.predict`.
        """
        if not instance_ids:
            return []
        engines = [self._engines[instance_id] for instance_id in instance_ids]
        return predict(
            self._forecaster,
            [engine.believed for engine in engines],
            request,
            self._length_row(request.length),
            at_s=now_s,
            now_s=now_s,
            ages_s=[engine.age_s(now_s) for engine in engines],
            announced_only=announced_only,
            externality=externality,
            with_quantiles=with_quantiles,
            single=single,
        )

    def _predictor(self, instance_id: str) -> EnginePredictor:
        return self._engines[instance_id].believed
