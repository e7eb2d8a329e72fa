"""The state of an engine that publishes nothing, inferred from the requests that were sent to it.

Observers (schedulers) know what they sent, when tokens came back, and which requests ended. A twin
with the engine's limits makes a step whenever tokens show that one has ended. The twin then shows
what cannot be observed: which requests wait, how far prompts are computed, and the KV blocks in
use. If tokens contradict the twin, it is corrected by them. If no answer is streamed, a step ends
at its predicted time.

Instants are unix seconds of one clock.
"""

from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from math import inf

from foretell.engine.batch import StepBatch
from foretell.engine.observed_rows import (
    ObservedRequest,
    fitted,
    restored,
    samples,
    unheard,
)
from foretell.engine.seen_limits import LOOK_EVERY_S, Evidence, SeenLimits
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Twin
from foretell.model import BatchShape, EngineSnapshot, RequestSpec, RequestState, Step
from foretell.model.limits import EngineLimits

_NOTHING: Mapping[str, int] = {}
_EARLY_S = 1e-4
"""Ends of requests are dated back by this, to be before the end of their last step."""
_ENOUGH_TOKENS = 8
"""An answer without streaming teaches how long a step takes if it has at least so many tokens."""
_FIRST_WAY_S, _MOST_WAY_S, _WAY_RATE = 0.002, 1.0, 0.1
"""Delay from a scheduler to the engine's queue: initial, most, learning rate. Learned on an idle
engine: the time to the first token minus the predicted steps."""
_KNOWN_STEPS = 100
"""Up to so many learned steps, first steps of an idle engine teach step times, not the delay."""
_MOST_REQUESTS = 10_000
_MOST_STEPS = 4096
"""The most steps that the twin makes at once to catch up."""


class ObservedEngine:
    """One engine. Memory is bounded by the number of requests that have not ended."""

    def __init__(
        self, instance_id: str, given: EngineLimits, step_s: Callable[[BatchShape], float]
    ) -> None:
        """`given`: the limits from the configuration; `step_s` predicts the seconds of a step."""
        self._instance_id = instance_id
        self._limits = SeenLimits(given)
        self._step_s = step_s
        self._requests: dict[str, ObservedRequest] = {}
        self._coming: deque[ObservedRequest] = deque()
        self._run, self._runs = "", 0
        self._sequence = self._steps = 0
        self._completed: list[Step] = []
        self._learned = 0
        self._way_s = _FIRST_WAY_S
        self._from_idle = False
        self.config = self._limits.config()
        self._start(Twin(self.config))

    def _start(self, twin: Twin) -> None:
        self._twin = twin
        self._batch: StepBatch | None = None
        self._begun_s = 0.0
        self._is_timed = False

    # --- Observations. ---

    def sent(self, spec: RequestSpec, at_s: float, cached_tokens: int = 0) -> None:
        """Note that a request is sent; `cached_tokens` are believed to be in the engine's cache."""
        known = self._requests.get(spec.request_id)
        if known is not None:
            known.spec = spec
            return
        if len(self._requests) >= _MOST_REQUESTS:
            return
        at_s += self._way_s
        request = ObservedRequest(spec, at_s, cached_tokens, [])
        self._requests[spec.request_id] = request
        self._coming.append(request)
        if self._batch is None:
            self._begin(at_s, is_seen=True, from_idle=True)

    def ended(self, request_id: str, at_s: float, output_tokens: int = 0) -> None:
        """Note that a request has ended or was cancelled. `output_tokens`: 0 if unknown."""
        request = self._requests.get(request_id)
        if request is not None:
            if not request.streams and output_tokens >= _ENOUGH_TOKENS:
                self._learn_whole(request, at_s, output_tokens)
            request.ended_s = request.ended_s or at_s - _EARLY_S
            if self._batch is None:
                self._drop_ended(at_s)

    def progressed(
        self,
        ends: list[tuple[float, int]],
        tokens: Mapping[str, int],
        first: Mapping[str, int] = _NOTHING,
        since_s: float = inf,
    ) -> None:
        """Take in the steps that an observer has seen.

        `ends`: (when, steps since the end before), oldest first; the one before the first was at
        `since_s`, infinite if unknown. `tokens`: the tokens of each stream at the last end.
        `first`: which of `ends`, from 1, gave a stream its first token; 0: none of them."""
        for key, count in tokens.items():
            if (request := self._requests.get(key)) is not None:
                request.streams, request.tokens = True, max(request.tokens, count)
        later = {
            key: first.get(key, 0) if count else len(ends) + 1 for key, count in tokens.items()
        }
        new = unheard(ends, since_s, self._begun_s, self._usual_s())
        for number, (end_s, steps) in enumerate(new, 1):
            self._make(steps, end_s, {key for key, end in later.items() if end > number})
        self._catch_up(tokens)
        if any(r.is_elsewhere for r in map(self._requests.get, tokens) if r is not None):
            is_timed = self._is_timed
            self._correct()
            self._is_timed = is_timed
        if ends:
            self._look(ends[-1][0])

    def compare(self, evidence: Evidence, at_s: float) -> None:
        """Take in the engine's metrics."""
        if evidence.run != self._run:
            is_other, self._run = bool(self._run), evidence.run
            if is_other:
                self._limits.forget()
        self._limits.found = evidence.limits.beside(self._limits.found)
        self._limits.weigh(evidence.running, evidence.waiting > 0, at_s)
        self._configure()

    def learn(self, limits: EngineLimits) -> None:
        """Take in limits that the engine states elsewhere than in its metrics."""
        self._limits.found = limits.beside(self._limits.found)
        self._configure()

    # --- Snapshots. ---

    def snapshot(self, now_s: float) -> EngineSnapshot:
        """The state as known now, with the steps completed since the last snapshot."""
        self._advance(now_s)
        scheduled = self._scheduled()
        names = {id(s): r for r in self._requests.values() if not r.ended_s for s in r.sequences}
        rows = [
            [
                names[id(seq)].row(seq, scheduled.get(id(seq), 0))
                for seq in sequences
                if id(seq) in names
            ]
            for sequences in (self._twin.running, self._twin.waiting)
        ]
        in_flight: tuple[Step, ...] = ()
        if self._batch is not None:
            in_flight = (Step(self._steps, self._begun_s, 0.0, self._batch.shape),)
        self._sequence += 1
        completed, self._completed = tuple(self._completed), []
        return EngineSnapshot(
            instance_id=self._instance_id,
            engine_run_id=f"{self._run}#{self._runs}",
            sequence=self._sequence,
            taken_unix_s=self._begun_s if in_flight else now_s,
            published_unix_s=now_s,
            config=self.config,
            free_blocks=self._twin.free_blocks,
            running=rows[0],
            waiting=rows[1],
            steps_in_flight=in_flight,
            completed_steps=completed,
        )

    # --- Steps. ---

    def _begin(self, at_s: float, *, is_seen: bool, from_idle: bool = False) -> None:
        """Schedule the step that begins at `at_s`; `is_seen`: that time was observed."""
        self._drop_ended(at_s)
        while self._coming and self._coming[0].sent_s <= at_s:
            self._add(self._coming.popleft())
        self._batch = self._twin.schedule()
        while self._batch is not None and not self._batch.scheduled:
            self._twin.complete(self._batch)
            self._batch = self._twin.schedule()
        self._begun_s, self._is_timed, self._from_idle = at_s, is_seen, from_idle
        self._steps += 1
        for seq in self._batch.admitted if self._batch is not None else ():
            if (request := self._requests.get(seq.request_id)) is not None:
                request.begun_s = request.begun_s or at_s
        if self._batch is None and self._coming:
            self._begin(self._coming[0].sent_s, is_seen=True, from_idle=True)

    def _complete(self, at_s: float, *, is_seen: bool) -> None:
        assert self._batch is not None
        self._twin.complete(self._batch)
        self._begin(at_s, is_seen=is_seen)

    def _make(self, steps: int, end_s: float, later: Set[str]) -> None:
        """Complete `steps` steps that sampled tokens, the latest of them at `end_s`.

        Steps between them that only computed prompts sampled none and do not count. Requests in
        `later` got no token in these steps. Each step's share of the time is proportional to its
        prediction.
        """
        begun_s, is_timed, first = self._begun_s, self._is_timed, self._steps
        from_idle = self._from_idle and self._learned > _KNOWN_STEPS
        shapes: list[BatchShape] = []
        while self._batch is not None and steps > 0 and len(shapes) < _MOST_STEPS:
            self._hold_back(later, end_s)
            if self._batch is None:
                break
            steps -= any(map(samples, self._sequences()))
            shapes.append(self._batch.shape)
            at_s = end_s if not steps else min(end_s, self._begun_s + self._usual_s())
            self._complete(at_s, is_seen=not steps)
        if not shapes:
            return
        if from_idle:
            late_s = end_s - begun_s - sum(map(self._step_s, shapes))
            self._way_s = min(_MOST_WAY_S, max(0.0, self._way_s + _WAY_RATE * late_s))
        elif is_timed and begun_s < end_s:
            self._learned += len(shapes)
            predicted_s = [self._step_s(shape) for shape in shapes]
            scale = (end_s - begun_s) / sum(predicted_s)
            for number, (shape, each_s) in enumerate(zip(shapes, predicted_s, strict=True), first):
                self._completed.append(Step(number, begun_s, each_s * scale, shape))
                begun_s += each_s * scale
            del self._completed[:-_MOST_STEPS]

    def _hold_back(self, later: Set[str], end_s: float) -> None:
        """Take requests in `later` out of the step in flight: the twin gives them their first token
        in it, but they get it later, so they arrived too late for this step."""
        early = {
            seq.request_id
            for seq in self._sequences()
            if seq.request_id in later and not seq.output_tokens and samples(seq)
        }
        if not early:
            return
        is_timed, begun_s = self._is_timed, self._begun_s
        late_s = min(end_s - begun_s, self._usual_s())
        self._way_s = min(_MOST_WAY_S, self._way_s + _WAY_RATE * late_s)
        for key in early:
            request = self._requests[key]
            self._twin.abort(key)
            request.sequences, request.sent_s, request.begun_s = [], end_s, 0.0
            self._coming.appendleft(request)
        self._correct(by_tokens=False)
        self._is_timed = is_timed

    def _advance(self, now_s: float) -> None:
        """End steps that no stream shows at their predicted ends."""
        for _ in range(_MOST_STEPS):
            if self._batch is None or self._is_watched():
                return
            end_s = self._begun_s + self._step_s(self._batch.shape)
            if end_s > now_s:
                return
            self._complete(end_s, is_seen=False)

    def _catch_up(self, tokens: Mapping[str, int]) -> None:
        """Make the steps whose ends were not observed but whose tokens all streams have."""
        known = [self._requests[key] for key in tokens if key in self._requests]
        lags = [request.lag for request in known if request.decodes]
        for _ in range(min(_MOST_STEPS, min(lags, default=0) - 1)):
            if self._batch is not None:
                self._complete(self._begun_s, is_seen=False)

    def _learn_whole(self, request: ObservedRequest, at_s: float, tokens: int) -> None:
        """Learn a step time from a whole answer: one step a token, all equally long."""
        if not request.begun_s or at_s <= request.begun_s:
            return
        contexts = [seq.computed_tokens for seq in self._twin.running]
        contexts = contexts or [request.spec.prompt_tokens + tokens]
        shape = BatchShape(decode_seqs=len(contexts), decode_pairs=sum(contexts))
        each_s = (at_s - request.begun_s) / tokens
        self._completed.append(Step(self._steps, at_s - each_s, each_s, shape))

    def _is_watched(self) -> bool:
        """Whether a stream will show the end of the step in flight."""
        named = {id(s) for r in self._requests.values() if r.streams for s in r.sequences}
        return any(id(seq) in named and samples(seq) for seq in self._sequences())

    def _scheduled(self) -> dict[int, int]:
        """The tokens of each sequence in the step in flight, by `id` of the sequence."""
        batch = self._batch
        return {id(seq): n for seq, n in batch.scheduled} if batch is not None else {}

    def _sequences(self) -> list[Sequence]:
        """The sequences in the step in flight."""
        return [seq for seq, _ in self._batch.scheduled] if self._batch is not None else []

    def _usual_s(self) -> float:
        return self._step_s(self._batch.shape) if self._batch is not None else 0.0

    # --- Requests. ---

    def _add(self, request: ObservedRequest) -> None:
        request.sequences = request.begun(self.config)
        for seq in request.sequences:
            self._twin.add(seq)

    def _drop_ended(self, at_s: float) -> None:
        ended = [key for key, r in self._requests.items() if 0.0 < r.ended_s <= at_s]
        for key in ended:
            request = self._requests.pop(key)
            if request.sequences:
                self._twin.abort(key)
            else:
                self._coming.remove(request)

    def _correct(self, *, by_tokens: bool = True) -> None:
        """Rebuild the twin from the tokens of streams, and without tokens from the old twin."""
        before, (placed, back) = self.config, self._sorted(by_tokens)
        running: list[RequestState] = []
        waiting: list[RequestState] = []
        scheduled = self._scheduled()
        for request in placed:
            running += [
                request.before_step(seq, scheduled.get(id(seq), 0), by_tokens)
                for seq in request.sequences
            ]
        for request in back:
            waiting += [request.row(seq, waits=True) for seq in request.sequences]
        self.config = self._limits.config()
        used = sum(self.config.blocks_for(row.computed_tokens) for row in running)
        if used > self.config.total_blocks:
            self._limits.found = replace(self._limits.found, total_blocks=used)
            self.config = self._limits.config()
        self._runs += self.config != before
        begun_s = self._begun_s
        twin = restored(self.config, running, waiting, begun_s)
        self._start(twin)
        named = iter((*twin.running, *twin.waiting))
        for request in (*placed, *back):
            request.sequences = [next(named) for _ in request.sequences]
        self._begin(begun_s, is_seen=False)

    def _sorted(self, by_tokens: bool) -> tuple[list[ObservedRequest], list[ObservedRequest]]:
        """The running and the waiting requests, by tokens or by the twin."""
        back: list[ObservedRequest] = []
        found: list[ObservedRequest] = []
        if self._limits.seats:
            self._limits.seats = max(self._limits.seats, self._count_running())
        for seq in (*self._twin.running, *self._twin.waiting):
            request = self._requests.get(seq.request_id)
            if request is not None and request.sequences and seq is request.sequences[0]:
                (found if request.runs(by_tokens) else back).append(request)
        for request in [r for r in self._coming if r.tokens and by_tokens]:
            self._coming.remove(request)
            self._add(request)
            found.append(request)
        most = self._limits.config().max_num_seqs
        placed, left = fitted(found, most)
        for request in left:
            if request.ended_s:
                del self._requests[request.spec.request_id]
            else:
                back.insert(0, request)
        if (seats := sum(len(request.sequences) for request in placed)) > most:
            self._limits.seats = seats
        return placed, back

    def restart(self) -> None:
        """Start with a new twin and the requests that have not ended."""
        self._requests = {k: r for k, r in self._requests.items() if not r.ended_s}
        self._coming = deque(self._requests.values())
        for request in self._coming:
            request.sequences, request.begun_s = [], 0.0
        begun_s = self._begun_s
        self._start(Twin(self.config))
        self._begin(begun_s, is_seen=False)

    # --- Limits. ---

    def _count_running(self) -> int:
        return sum(1 for r in self._requests.values() if r.tokens and not r.ended_s)

    def _look(self, at_s: float) -> None:
        """Infer from the streams whether requests wait, where the engine has no metrics."""
        if self._limits.found.max_num_seqs or self._run:
            return
        waits = any(
            r.streams and not r.tokens and not r.ended_s and at_s - r.sent_s > 2 * LOOK_EVERY_S
            for r in self._requests.values()
        )
        self._limits.weigh(self._count_running(), waits, at_s)

    def _configure(self) -> None:
        if self._limits.config() != self.config:
            self._correct()
