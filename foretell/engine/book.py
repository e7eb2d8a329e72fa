"""What a predictor knows: the engine's latest snapshot, and who is on the way to it."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from foretell.engine.answer import as_prediction, no_spread
from foretell.engine.delay import UsualDelay
from foretell.engine.expected import RecentArrivals
from foretell.engine.externality import Externality
from foretell.engine.forecast import (
    Forecaster,
    LengthRow,
    PendingRequest,
)
from foretell.engine.prefixes import PrefixIndex
from foretell.latency.linear import StepTimeModel
from foretell.model import (
    EngineSnapshot,
    LengthEstimate,
    Load,
    Prediction,
    RequestSpec,
    RequestState,
    RequestTable,
)

MAX_RESERVATIONS = 10_000
MAX_OBSERVED = 20_000
LOOK_AHEAD_S, MOST_EXPECTED = 60.0, 64
"""How far, and for how many, arrivals are expected that nobody has announced."""

_LONGEST_DELAY_S = 2.0


def samples_behind(waiting: int) -> int:
    """How many rollouts, each with other output lengths, a newcomer behind so many others gets.

    When it may start depends on the more lengths the more wait, and their deviations average out;
    and a rollout costs as much as has to be admitted in it. A power of two: `draw_totals`.
    """
    if waiting < 8:
        return 8
    return 4 if waiting < 32 else 2


@dataclass(slots=True)
class Observed:
    """What snapshots have shown of one request."""

    since_unix_s: float = 0.0
    """Its reservation; its arrival in the engine where a snapshot was faster than `Reserve`."""
    ttft_s: float = 0.0
    """From then to the first snapshot with a token of it; 0 when not seen."""
    output_tokens: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """Of its prompt, found in the prefix cache; only of requests whose `prefix` is known, and
    only if a snapshot showed them running: of a few steps there may be none."""
    length_row: LengthRow = ()
    """What is believed of its output length."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A dispatched request that no snapshot has shown yet."""

    request: RequestSpec
    made_unix_s: float
    expires_unix_s: float
    length_row: LengthRow


class EngineBook:
    """A predictor's memory of one engine. Every collection is bounded; time is an argument.

    `length_row` makes a distribution of an estimate (`foretell.length.distribution.knots`);
    `prior_tokens` is the mean output length of requests that nobody estimated.
    `dispatch_delay_s` is the time from a prediction to the request's arrival in the engine's
    queue: assumed at first, then learned from when reservations turn up in snapshots.
    `every_step_published` is explained at `Forecaster.forecast`.
    """

    def __init__(
        self,
        *,
        dispatch_delay_s: float,
        length_row: Callable[[LengthEstimate], LengthRow],
        prior_tokens: float,
        every_step_published: bool = True,
    ) -> None:
        self._delay = UsualDelay(dispatch_delay_s, _LONGEST_DELAY_S)
        self._arrivals = RecentArrivals()
        self._length_row = length_row
        self._prior_tokens = prior_tokens
        self._prior_row = length_row(LengthEstimate(prior_tokens))
        self._every_step_published = every_step_published
        self._forecaster: Forecaster | None = None
        self._externality: Externality | None = None
        self._asked = False
        self._waiting_blocks: int | None = None
        self._prefixes: PrefixIndex | None = None
        self.snapshot: EngineSnapshot | None = None
        self.heard_unix_s = 0.0
        self._reservations: OrderedDict[str, Reservation] = OrderedDict()
        self._observed: OrderedDict[str, Observed] = OrderedDict()

    @property
    def dispatch_delay_s(self) -> float:
        """From a prediction to the request's arrival in the engine's queue, as learned so far."""
        return self._delay.seconds

    def hear(self, snapshot: EngineSnapshot) -> bool:
        """Take in a snapshot; False for one that is older than what is known."""
        known = self.snapshot
        same_run = known is not None and known.engine_run_id == snapshot.engine_run_id
        if known is not None and same_run and snapshot.sequence < known.sequence:
            return False
        self.heard_unix_s = max(self.heard_unix_s, snapshot.published_unix_s)
        if known is not None and same_run and snapshot.sequence == known.sequence:
            return True  # a heartbeat: the engine lives, its state is the same
        if not same_run:
            self._observed.clear()  # what another run of the engine did died with it
            caches = snapshot.config.enable_prefix_caching
            self._prefixes = PrefixIndex(snapshot.config) if caches else None
        before, self.snapshot = known if same_run else None, snapshot
        self._forecaster = self._externality = self._waiting_blocks = None
        for rows in (snapshot.running, snapshot.waiting):
            self._see(RequestTable.of(rows), snapshot.taken_unix_s, before)
        self._see_hits(RequestTable.of(snapshot.running))
        if self._asked:  # about the state before; then about this one too: nobody need wait
            self._forecaster = self._new_forecaster(snapshot)
            self._asked = False
        return True

    def reserve(self, request: RequestSpec, now_unix_s: float, ttl_s: float) -> None:
        """Count `request` as on its way, unless a snapshot has already shown it."""
        if self._prefixes is not None:
            request = _with_hits(request, self._prefixes.reserve(request))
        if request.request_id in self._observed:
            return
        size = request.prompt_tokens, request.length.expected_tokens
        for _ in range(request.sequences):
            self._arrivals.note(*size, now_unix_s, request.cached_tokens)
        self._reservations[request.request_id] = Reservation(
            request, now_unix_s, now_unix_s + ttl_s, self._length_row(request.length)
        )
        while len(self._reservations) > MAX_RESERVATIONS:
            self._reservations.popitem(last=False)

    def complete(self, request_id: str, *, answered: bool = False) -> Observed:
        """The request has ended: forget it and return what was seen of it.

        `answered`: some of its output came; snapshots may still be on their way.
        """
        self._reservations.pop(request_id, None)
        if self._prefixes is not None:
            self._prefixes.ended(request_id, answered=answered)
        return self._observed.pop(request_id, None) or Observed()

    def predict(
        self,
        request: RequestSpec,
        step_time: StepTimeModel,
        now_unix_s: float,
        *,
        spread: Callable[[int], float] = no_spread,
        announced_only: bool = False,
        externality: bool = False,
        with_quantiles: bool = True,
    ) -> Prediction | None:
        """What the engine would do with `request`, dispatched now; None before any snapshot.

        It reckons with requests that will come later, as many and as large as of late. With
        `announced_only` it does not, which is how to compare instances: how many have come here
        says little of where those will go that are still to be placed.
        `spread` is the relative standard deviation of the time of so many steps. With `externality`
        also what the request adds to the latencies of all that are there or on their way.
        `with_quantiles` as `as_prediction` has it.
        """
        snapshot, load = self.snapshot, self.load(now_unix_s)
        if snapshot is None or load is None:
            return None
        if self._forecaster is None:
            self._forecaster = self._new_forecaster(snapshot)
        self._asked = True
        if self._prefixes is not None:
            request = _with_hits(request, self._prefixes.find(request))
        newcomer = PendingRequest(
            now_unix_s + self.dispatch_delay_s, request, self._length_row(request.length)
        )
        pending = self.pending(now_unix_s)
        samples = samples_behind(load.waiting + load.reserved)
        seen = self._forecaster.forecast(
            step_time,
            newcomer,
            now_unix_s,
            samples=samples,
            pending=pending if announced_only else [*pending, *self._expected(newcomer)],
            every_step_published=self._every_step_published,
        )
        added = None
        if externality:
            if self._externality is None:
                self._externality = Externality(self._forecaster)
            added = self._externality.added(
                step_time,
                newcomer,
                now_unix_s,
                samples=samples,
                others=pending,
                every_step_published=self._every_step_published,
            )
        return as_prediction(
            snapshot.instance_id,
            seen,
            load,
            age_s=self.age_s(now_unix_s),
            spread=spread,
            added=added,
            cached_tokens=request.cached_tokens,
            with_quantiles=with_quantiles,
        )

    def _new_forecaster(self, snapshot: EngineSnapshot) -> Forecaster:
        running, waiting = RequestTable.of(snapshot.running), RequestTable.of(snapshot.waiting)
        if self._prefixes is not None and self._prefixes.pending:
            # An engine looks for cached blocks when it admits: of those who wait it says nothing.
            believed = map(self._prefixes.believed, waiting.foretell_id)
            hits = [max(pair) for pair in zip(waiting.cached_tokens, believed, strict=True)]
            waiting = replace(waiting, cached_tokens=hits)
            snapshot = replace(snapshot, waiting=waiting)
        rows = [row for table in (running, waiting) for row in self._length_rows(table)]
        return Forecaster(snapshot, rows)

    def _expected(self, newcomer: PendingRequest) -> list[PendingRequest]:
        """Who will be in the engine's queue besides, behind `newcomer`, though nobody said so."""
        start = newcomer.at_unix_s
        later = self._arrivals.expected(start, start + LOOK_AHEAD_S, MOST_EXPECTED)
        return [later] if later else []

    def age_s(self, now_unix_s: float) -> float:
        """Seconds since the engine was last heard from."""
        return max(0.0, now_unix_s - self.heard_unix_s)

    def pending(self, now_unix_s: float) -> list[PendingRequest]:
        """Reservations still alive, as arrivals the engine is about to see."""
        dead = [key for key, r in self._reservations.items() if r.expires_unix_s <= now_unix_s]
        for key in dead:
            del self._reservations[key]
            if self._prefixes is not None:
                self._prefixes.ended(key, answered=False)
        return [
            PendingRequest(r.made_unix_s + self.dispatch_delay_s, r.request, r.length_row)
            for r in self._reservations.values()
        ]

    def load(self, now_unix_s: float) -> Load | None:
        """The engine's occupancy, reservations included; None before the first snapshot."""
        snapshot = self.snapshot
        if snapshot is None:
            return None
        config = snapshot.config
        if self._waiting_blocks is None:
            table = RequestTable.of(snapshot.waiting)
            known = zip(table.prompt_tokens, table.output_tokens, strict=True)
            self._waiting_blocks = sum([config.blocks_for(p + o) for p, o in known])
        reserved = [p.request for p in self.pending(now_unix_s)]
        waiting = self._waiting_blocks
        waiting += sum([r.sequences * config.blocks_for(r.prompt_tokens) for r in reserved])
        return Load(
            running=len(snapshot.running),
            waiting=len(snapshot.waiting),
            reserved=sum([request.sequences for request in reserved]),
            used_blocks=max(0, config.total_blocks - snapshot.free_blocks),
            total_blocks=config.total_blocks,
            waiting_prefill_blocks=waiting,
            max_num_seqs=config.max_num_seqs,
            by_priority=config.policy == "priority",
        )

    def _see(self, table: RequestTable, at_unix_s: float, before: EngineSnapshot | None) -> None:
        """Note what is new of each request. This runs for every engine step: few calls a row."""
        columns = table.foretell_id, table.output_tokens, table.preemptions
        for index, (key, output, preemptions) in enumerate(zip(*columns, strict=True)):
            if not key:
                continue
            seen = self._observed.get(key)
            if seen is None or key in self._reservations:
                seen = self._meet(table[index], seen, at_unix_s, before)
            if output > seen.output_tokens:
                if not seen.output_tokens:
                    seen.ttft_s = max(0.0, at_unix_s - seen.since_unix_s)
                seen.output_tokens = output
            if preemptions > seen.preemptions:
                seen.preemptions = preemptions

    def _see_hits(self, running: RequestTable) -> None:
        """Note what prefixes were found of the requests that run since the last snapshot."""
        if self._prefixes is None:
            return
        pending = set(self._prefixes.pending)
        if not pending:
            return
        for index, key in enumerate(running.foretell_id):
            if key in pending:
                cached, prompt = running.cached_tokens[index], running.prompt_tokens[index]
                self._prefixes.admitted(key, cached, prompt)
                pending.discard(key)  # of several sequences the first one tells
                if (seen := self._observed.get(key)) is not None:
                    seen.cached_tokens = cached

    def _meet(
        self,
        state: RequestState,
        seen: Observed | None,
        at_unix_s: float,
        before: EngineSnapshot | None,
    ) -> Observed:
        """A snapshot shows a request for the first time, or since it was reserved."""
        reservation = self._reservations.pop(state.foretell_id, None)
        if seen is None and reservation is None:
            expected = state.predicted_output_tokens or self._prior_tokens
            self._arrivals.note(state.prompt_tokens, expected, at_unix_s)
        if seen is None:
            seen = Observed(state.arrival_unix_s, prompt_tokens=state.prompt_tokens)
            self._observed[state.foretell_id] = seen
            while len(self._observed) > MAX_OBSERVED:
                self._observed.popitem(last=False)
        if reservation is not None:
            seen.length_row = reservation.length_row
            seen.since_unix_s = reservation.made_unix_s
            self._learn_delay(reservation.made_unix_s, state, at_unix_s, before)
        return seen

    def _length_rows(self, table: RequestTable) -> list[LengthRow]:
        """As estimated at dispatch, or as the engine was told, or where nothing is known."""
        rows = []
        for key, tokens in zip(table.foretell_id, table.predicted_output_tokens, strict=True):
            seen = self._observed.get(key)
            if seen is not None and seen.length_row:
                row = seen.length_row
            elif tokens <= 0:
                row = self._prior_row
            else:
                row = self._length_row(LengthEstimate(tokens, source="model"))
                if seen is not None:
                    seen.length_row = row
            rows.append(row)
        return rows

    def _learn_delay(
        self,
        made_unix_s: float,
        state: RequestState,
        at_unix_s: float,
        before: EngineSnapshot | None,
    ) -> None:
        """A request shown for the first time reached the queue since the snapshot `before`.

        An idle engine schedules what arrives at once, so it has just come. A busy one looks at
        its queue once a step: it came some time since the step before, and not before its API
        server had it.
        """
        if before is None:
            return
        earliest = at_unix_s
        if before.running or before.waiting:
            earliest = max(before.taken_unix_s, state.arrival_unix_s)
        self._delay.learn(earliest - made_unix_s, at_unix_s - made_unix_s)


def _with_hits(request: RequestSpec, tokens: int) -> RequestSpec:
    return replace(request, cached_tokens=tokens) if tokens > request.cached_tokens else request
