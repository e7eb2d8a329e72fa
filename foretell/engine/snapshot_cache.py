"""The latest snapshots of the engines that a scheduler places requests on.

Predictors publish what they know of their engines (`engine.published`). A follower
predicts for a new request without asking anybody, in one compiled call for all candidates. Its own
requests count at once, those of other schedulers when their predictor has told of them.

Times are of the follower's clock, to which those of snapshots are shifted: hosts' clocks differ.
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
"""Silence after which a predictor no longer counts as followed; it speaks once a second."""
_CLOCKS = 16
"""Latest messages among which the quickest one tells how two clocks differ."""
_ESTIMATES = 256
"""Latest estimates whose distributions are kept."""
_CLOCK_JUMP_S = 1.0


class FollowedEngine:
    """One engine in the cache: the latest snapshot of it, and the follower's own requests."""

    def __init__(self, forecaster: Forecaster, index: int, length_row: LengthRow) -> None:
        self.index = index
        self.answer_delay_s = 0.0
        """From a token in the engine to the follower; predictions include it."""
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
        # What was heard is taken in when somebody wants to know: most is heard for nobody.
        self._is_news = self._is_new_snapshot = False
        self._known_s = float("-inf")

    @property
    def predictor(self) -> EnginePredictor | None:
        """The engine as it was last heard of; None before the first snapshot."""
        if self._is_news:
            self._take_in()
        return self._predictor

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest one; its instants are of the predictor's clock."""
        return None if self._snapshot is None else self._snapshot[0]

    def exposure(self) -> Exposure:
        """What predictions are made from now; there must be a snapshot."""
        if self._exposure is None:
            assert self._snapshot is not None, "there is no snapshot yet"
            self._exposure = Exposure(*self._snapshot, self._known_s, self._underway.rows)
        return self._exposure

    @property
    def believed(self) -> EnginePredictor:
        """The predictor, with what is known of answers' delays; there must be a snapshot."""
        predictor = self.predictor
        assert predictor is not None, "an instance without a snapshot is not fresh"
        predictor.answer_delay_s = self.answer_delay_s
        return predictor

    def age_s(self, now_s: float) -> float:
        """Seconds since the engine was last heard from, as its predictor told."""
        return max(0.0, now_s - self._heard_s)

    def is_fresh(self, now_s: float) -> bool:
        """Whether the snapshot may be believed: there is one, and its predictor still speaks."""
        return self._snapshot is not None and now_s - self._told_s <= STALE_S

    def begin(self, now_s: float) -> list[tuple[RequestSpec, float]]:
        """A stream begins: the open requests, to be told again with their ages in seconds.

        They are the first notices of the stream. What was heard before stays until it is stale.
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
        """The follower sends `request` to this engine, and notifies its predictor."""
        self._open[request.request_id] = request, now_s
        self._announce(request, now_s)

    def revise(self, request: RequestSpec, now_s: float) -> float | None:
        """More is known of a request than when it was sent, of which its predictor is notified.

        Returns how many seconds ago it was sent; None where it has ended: nobody is notified then.
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
        """That request has ended, of which the follower notifies the predictor."""
        self._notices += 1
        self._open.pop(request_id, None)
        self._underway.forget(request_id)
        self._exposure = None

    def hear(self, message: Published, now_s: float) -> None:
        """Take in what the predictor published, whose snapshot is checked."""
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
            self._take_in()  # forecasts of others in its deployment look at it, too
        if message.all_prefixes:
            underway.prefixes = set()
        if message.cached_prefixes or message.evicted_prefixes:
            underway.prefixes.update(message.cached_prefixes)
            underway.prefixes.difference_update(message.evicted_prefixes)

    def _announce(self, request: RequestSpec, at_s: float) -> None:
        self._notices += 1
        # The predictor's rows will say what the engine is believed to have cached; so must these.
        cached_tokens = self._underway.cached_tokens(request)
        row = arrival(request, self._length_row(request.length), at_s, cached_tokens=cached_tokens)
        self._underway.announce(self._notices, request, row)
        self._exposure = None

    def _shift_s(self, latest_s: float) -> float:
        """What to add to the predictor's times, by the message that was quickest on its way."""
        shifts = self._shifts
        if shifts and abs(latest_s - self._shift_now_s) > _CLOCK_JUMP_S:
            shifts.clear()  # a clock was set, or this process stood still
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
            if predictor.engine_config is not snapshot.config:  # which is nearly always the same
                predictor.configure(snapshot.config)
            learnt = snapshot.step_error, snapshot.calibration_steps
            predictor.believe(snapshot.step_time, *learnt)
            forecaster.put(index, snapshot.header, snapshot.requests, snapshot.inputs, shift_s)
        forecaster.still_true(index, self._known_s)
        predictor.published()


class SnapshotCache:
    """The engines that are followed; for one thread. Instance ids are the caller's."""

    def __init__(self, length_row: LengthRow) -> None:
        """`length_row` makes a distribution of an estimate (`foretell.length.distribution`)."""
        # A request is predicted, predicted again and announced with one estimate.
        self._length_row = lru_cache(maxsize=_ESTIMATES)(length_row)
        self._forecaster = Forecaster(0)
        self._engines: dict[str, FollowedEngine] = {}
        self._free: list[int] = []

    def __getitem__(self, instance_id: str) -> FollowedEngine:
        return self._engines[instance_id]

    def follow(self, instance_id: str) -> FollowedEngine:
        """The engine of this id, from now on in the cache."""
        index = self._free.pop() if self._free else self._forecaster.add()
        engine = FollowedEngine(self._forecaster, index, self._length_row)
        self._engines[instance_id] = engine
        return engine

    def leave(self, instance_id: str) -> None:
        """That engine is no longer followed."""
        index = self._engines.pop(instance_id).index
        self._forecaster.forget(index)
        self._free.append(index)

    def fresh(self, instance_ids: Sequence[str], now_s: float) -> list[str]:
        """Those of the instances whose snapshots may be believed."""
        engines = self._engines
        return [i for i in instance_ids if i in engines and engines[i].is_fresh(now_s)]

    def inputs(self, instance_ids: Sequence[str], now_s: float) -> PredictionInputs:
        """What predictions for these instances of `fresh` are made from now."""
        engines = [self._engines[instance_id] for instance_id in instance_ids]
        exposures = [engine.exposure() for engine in engines]
        return PredictionInputs(now_s, exposures, [engine.answer_delay_s for engine in engines])

    def load(self, instance_id: str) -> Load:
        """The occupancy of an instance of `fresh`, reservations included."""
        return self._predictor(instance_id).load()

    def wait_s(self, instance_id: str, request: RequestSpec, now_s: float) -> float | None:
        """Seconds until the first token of a request that was sent to an instance of `fresh`; None
        where it does not wait in its queue any more, as far as is known."""
        return self._predictor(instance_id).wait_s(request, self._length_row(request.length), now_s)

    def lanes(self, instance_id: str, now_s: float) -> list[Lane]:
        """What becomes of the requests on an instance of `fresh`."""
        return lanes(self._predictor(instance_id), now_s)

    def has_begun(self, instance_id: str, request_id: str) -> bool:
        """Whether that request runs on an instance of `fresh`, as far as is known."""
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
        """What becomes of `request` on each of the instances, all of `fresh`, if dispatched now.

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
