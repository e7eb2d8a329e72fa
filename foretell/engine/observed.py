"""The state of an engine that publishes nothing, as those who send it requests see it.

They know what they sent, when tokens came back, and what has ended. A twin with the engine's limits
makes a step whenever tokens show that one has ended, and so tells what cannot be seen: who waits,
how far prompts are computed, and the KV blocks in use. Where tokens contradict it, it goes on from
what they say. Where nothing is streamed, a step ends when it is predicted to.

Instants are unix seconds of one clock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from foretell.engine.batch import Batch
from foretell.engine.sequence import Sequence
from foretell.engine.snapshots import restore_twin
from foretell.engine.twin import Twin
from foretell.model import BatchShape, EngineConfig, EngineSnapshot, RequestSpec, RequestState, Step
from foretell.model.limits import NO_LIMITS, Limits

OBSERVED = "observed from outside"
"""Among the approximations of every engine that is observed."""
TELL_EVERY_S = 0.1
"""How often observers tell what they have seen."""

_NOTHING: Mapping[str, int] = {}
_ENDLESS = 1 << 30
_SLACK_TOKENS = 2
"""An answer may be so much further, or less far, than the twin is: tokens are on their way."""
_EARLY_S = 1e-4
"""By which an end counts as before that of the step which was its last: clocks are read twice."""
_SAME_STEP = 0.3
"""Another observer has told of the same step within this share of the time between steps."""
_ENOUGH_TOKENS = 8
"""An answer that was no stream tells with so many how long a step takes, its first one included."""
_FIRST_WAY_S, _MOST_WAY_S, _WAY_RATE = 0.002, 1.0, 0.1
"""From a scheduler to the engine's queue; learned where the engine was idle, from what the first
token takes beside its step."""
_KNOWN_STEPS = 100
"""Before, such steps teach how long steps take."""
_MOST_REQUESTS = 10_000
_MOST_STEPS = 4096
"""Steps that are made up for at once."""
_LOOKS, _LOOK_EVERY_S = 3, 0.5
"""Requests must wait at so many looks for those who run to count as all that may."""


ASSUMED = Limits(256, 8192, 32_768, 16)
"""Of engines that say nothing: vLLM's defaults on large GPUs (vllm/engine/arg_utils.py, 0.32)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an engine says of itself in its metrics."""

    running: int
    waiting: int
    limits: Limits = NO_LIMITS
    run: str = ""
    """Another one when the engine has started again."""


@dataclass(slots=True, eq=False)
class _Request:
    spec: RequestSpec
    sent_s: float
    """When it is in the engine's queue."""
    cached_tokens: int
    sequences: list[Sequence]
    tokens: int = 0
    """Of one sequence, as its stream has shown; of a request without, none is."""
    streams: bool = False
    begun_s: float = 0.0
    """When it was admitted; 0: it was not."""
    ended_s: float = 0.0


class ObservedEngine:
    """One engine. Every collection is as large as the number of requests that have not ended."""

    def __init__(
        self, instance_id: str, given: Limits, step_s: Callable[[BatchShape], float]
    ) -> None:
        """`given`: the limits that somebody stated; `step_s` predicts the seconds of a step."""
        self._instance_id = instance_id
        self._given, self._found = given, Limits()
        self._step_s = step_s
        self._requests: dict[str, _Request] = {}
        self._coming: deque[_Request] = deque()
        self._run, self._runs = "", 0
        self._sequence = self._steps = 0
        self._told_s = 0.0
        self._completed: list[Step] = []
        self._looks: deque[tuple[int, bool]] = deque(maxlen=_LOOKS)
        self._looked_s = 0.0
        self._seats = 0
        self._learned = 0
        self._way_s = _FIRST_WAY_S
        self._from_idle = False
        self.config = self._configuration()
        self._start(Twin(self.config))

    def _start(self, twin: Twin) -> None:
        self._twin = twin
        self._batch: Batch | None = None
        self._begun_s = 0.0
        self._is_timed = False

    # --- what is seen ---

    def sent(self, spec: RequestSpec, at_s: float, cached_tokens: int = 0) -> None:
        """A request goes to the engine; `cached_tokens` are believed to be in its cache."""
        known = self._requests.get(spec.request_id)
        if known is not None:
            known.spec = spec
            return
        if len(self._requests) >= _MOST_REQUESTS:
            return
        at_s += self._way_s
        request = _Request(spec, at_s, cached_tokens, [])
        self._requests[spec.request_id] = request
        self._coming.append(request)
        if self._batch is None:
            self._begin(at_s, is_seen=True, from_idle=True)

    def ended(self, request_id: str, at_s: float, output_tokens: int = 0) -> None:
        """A request has ended, or does not want to be served any more; 0 tokens: nobody knows."""
        request = self._requests.get(request_id)
        if request is not None:
            if not request.streams and output_tokens >= _ENOUGH_TOKENS:
                self._learn_whole(request, at_s, output_tokens)
            request.ended_s = request.ended_s or at_s - _EARLY_S
            if self._batch is None:
                self._drop_ended(at_s)

    def progressed(
        self,
        ends_s: Iterable[float],
        tokens: Mapping[str, int],
        tokens_per_event: float = 1.0,
        first: Mapping[str, int] = _NOTHING,
    ) -> None:
        """An observer has seen the ends of these steps, the oldest first, after which its streams
        had so many tokens each. `first`: the step that gave a stream its first one, counted from 1;
        0: none of these did."""
        for key, count in tokens.items():
            if (request := self._requests.get(key)) is not None:
                request.streams, request.tokens = True, max(request.tokens, count)
        steps = max(1, round(tokens_per_event))
        ends = list(ends_s)
        gap_s = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else self._usual_s() * steps
        known_s = self._begun_s + _SAME_STEP * gap_s
        later = {
            key: first.get(key, 0) if count else len(ends) + 1 for key, count in tokens.items()
        }
        for number, end_s in enumerate(ends, 1):
            if end_s > known_s:
                self._hold_back({key for key, step in later.items() if step > number}, end_s)
                self._make(steps, end_s)
        self._catch_up(tokens)
        if any(self._is_wrong(key) for key in tokens):
            self._correct()
        if ends:
            self._look(ends[-1])

    def compare(self, evidence: Evidence, at_s: float) -> None:
        """The engine has told how it is."""
        if evidence.run != self._run:
            is_other, self._run = bool(self._run), evidence.run
            if is_other:
                self._seats, self._found = 0, Limits()
                self._looks.clear()
        self._found = evidence.limits.beside(self._found)
        self._weigh(evidence.running, evidence.waiting > 0, at_s)
        self._configure()

    def learn(self, limits: Limits) -> None:
        """So much is known of an engine that has no metrics."""
        self._found = limits.beside(self._found)
        self._configure()

    # --- what is told ---

    @property
    def is_idle(self) -> bool:
        """There are no requests."""
        return not self._requests

    def snapshot(self, now_s: float) -> EngineSnapshot:
        """The state as far as it is known now, which tells of steps completed since the last."""
        self._advance(now_s)
        scheduled = {}
        if self._batch is not None:
            scheduled = {id(seq): tokens for seq, tokens in self._batch.scheduled}
        names = {id(s): r for r in self._requests.values() if not r.ended_s for s in r.sequences}
        rows = [
            [
                _row(names[id(seq)], seq, scheduled.get(id(seq), 0))
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

    # --- steps ---

    def _begin(self, at_s: float, *, is_seen: bool, from_idle: bool = False) -> None:
        """Schedule the step that begins then; `is_seen`: it is known when that is."""
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

    def _make(self, steps: int, end_s: float) -> None:
        """So many steps that gave tokens have ended, the latest one then.

        Those between them which only computed prompts gave none. Time is shared among the steps in
        proportion to what is predicted.
        """
        begun_s, is_timed, first = self._begun_s, self._is_timed, self._steps
        from_idle = self._from_idle and self._learned > _KNOWN_STEPS
        shapes: list[BatchShape] = []
        while self._batch is not None and steps and len(shapes) < _MOST_STEPS:
            steps -= any(map(_samples, self._sequences()))
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
        """Those who have their first token `later` than in the step in flight, as the twin has it,
        came too late for it."""
        early = {
            seq.request_id
            for seq in self._sequences()
            if seq.request_id in later and not seq.output_tokens and _samples(seq)
        }
        if not early:
            return
        is_timed, begun_s = self._is_timed, self._begun_s
        self._way_s = min(_MOST_WAY_S, self._way_s + _WAY_RATE * (end_s - begun_s))
        for key in early:
            request = self._requests[key]
            self._twin.abort(key)
            request.sequences, request.sent_s, request.begun_s = [], end_s, 0.0
            self._coming.appendleft(request)
        self._correct(by_tokens=False)
        self._is_timed = is_timed

    def _advance(self, now_s: float) -> None:
        """Steps that no stream would show have ended when that is predicted."""
        for _ in range(_MOST_STEPS):
            if self._batch is None or self._is_watched():
                return
            end_s = self._begun_s + self._step_s(self._batch.shape)
            if end_s > now_s:
                return
            self._complete(end_s, is_seen=False)

    def _catch_up(self, tokens: Mapping[str, int]) -> None:
        """Make the steps whose ends nobody has seen, but which all streams have behind them."""
        lags = [
            request.tokens - request.sequences[0].output_tokens
            for key in tokens
            if (request := self._requests.get(key)) is not None
            and request.tokens
            and request.sequences
            and request.sequences[0].output_tokens
            and not request.sequences[0].ended
        ]
        for _ in range(min(_MOST_STEPS, min(lags, default=0) - 1)):
            if self._batch is not None:
                self._complete(self._begun_s, is_seen=False)

    def _learn_whole(self, request: _Request, at_s: float, tokens: int) -> None:
        """So many steps were made since it was admitted, about as long as each other."""
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
        return any(id(seq) in named and _samples(seq) for seq in self._sequences())

    def _sequences(self) -> list[Sequence]:
        """Those of the step in flight."""
        return [seq for seq, _ in self._batch.scheduled] if self._batch is not None else []

    def _usual_s(self) -> float:
        return self._step_s(self._batch.shape) if self._batch is not None else 0.0

    # --- requests ---

    def _add(self, request: _Request) -> None:
        spec = request.spec
        prompt = min(spec.prompt_tokens, self.config.max_model_len - 1)
        for _ in range(max(1, spec.sequences)):
            seq = Sequence(
                spec.request_id,
                max(1, prompt),
                spec.max_tokens or _ENDLESS,
                spec.max_tokens,
                arrival_s=request.sent_s,
                priority=spec.priority,
            )
            cached = min(request.cached_tokens, prompt - 1)
            seq.row["hits"] = max(0, cached) // self.config.block_size_tokens
            self._twin.add(seq)
            request.sequences.append(seq)

    def _drop_ended(self, at_s: float) -> None:
        ended = [key for key, r in self._requests.items() if 0.0 < r.ended_s <= at_s]
        for key in ended:
            request = self._requests.pop(key)
            if request.sequences:
                self._twin.abort(key)
            else:
                self._coming.remove(request)

    def _is_wrong(self, key: str) -> bool:
        """Whether the twin has a stream elsewhere than its tokens say."""
        request = self._requests.get(key)
        if request is None or request.spec.sequences > 1 or request.ended_s:
            return False
        output = request.sequences[0].output_tokens if request.sequences else 0
        if not request.tokens or not output:
            return output > _SLACK_TOKENS or request.tokens > _SLACK_TOKENS
        return abs(request.tokens - output) > _SLACK_TOKENS

    def _correct(self, *, by_tokens: bool = True) -> None:
        """Go on from what streams say, and from what the twin says where they say nothing."""
        before = self.config
        running: list[RequestState] = []
        waiting: list[RequestState] = []
        placed: list[_Request] = []
        back: list[_Request] = []
        count = self._count_running()
        if self._seats or count > self.config.max_num_seqs:
            self._seats = max(self._seats, count)
        for seq in (*self._twin.running, *self._twin.waiting):
            request = self._requests.get(seq.request_id)
            if request is None or not request.sequences or seq is not request.sequences[0]:
                continue
            (placed if self._runs_now(request, by_tokens) else back).append(request)
        for request in list(self._coming):
            if request.tokens and by_tokens:
                self._coming.remove(request)
                self._add(request)
                placed.append(request)
        self._make_room(placed, back)
        for request in placed:
            running += [self._stated(request, seq, by_tokens) for seq in request.sequences]
        for request in back:
            waiting += [_row(request, seq, 0, waits=True) for seq in request.sequences]
        self.config = self._configuration()
        used = sum(self.config.blocks_for(row.computed_tokens) for row in running)
        if used > self.config.total_blocks:
            self._found = replace(self._found, total_blocks=used)
            self.config = self._configuration()
        self._runs += self.config != before
        state = EngineSnapshot(
            instance_id=self._instance_id,
            engine_run_id="",
            sequence=0,
            taken_unix_s=self._begun_s,
            published_unix_s=self._begun_s,
            config=self.config,
            free_blocks=self.config.total_blocks - used,
            running=running,
            waiting=waiting,
            steps_in_flight=(),
            completed_steps=(),
        )
        begun_s = self._begun_s
        twin, _ = restore_twin(state, lambda row: row.max_tokens or _ENDLESS)
        self._start(twin)
        named = iter((*twin.running, *twin.waiting))
        for request in (*placed, *back):
            request.sequences = [next(named) for _ in request.sequences]
        self._begin(begun_s, is_seen=False)

    def _make_room(self, placed: list[_Request], back: list[_Request]) -> None:
        """More than fit cannot run: the ended go first, then the latest without a token."""
        most = self._configuration().max_num_seqs
        over = sum(len(request.sequences) for request in placed) - most
        ended = [request for request in placed if request.ended_s]
        fresh = [r for r in reversed(placed) if not (r.tokens or r.ended_s)]
        for request in (*ended, *fresh):
            if over <= 0:
                return
            placed.remove(request)
            over -= len(request.sequences)
            if request.ended_s:
                del self._requests[request.spec.request_id]
            else:
                back.insert(0, request)
        if over > 0:
            self._seats = most + over

    def restart(self) -> None:
        """Begin anew with the requests that have not ended."""
        self._requests = {k: r for k, r in self._requests.items() if not r.ended_s}
        self._coming = deque(self._requests.values())
        for request in self._coming:
            request.sequences, request.begun_s = [], 0.0
        begun_s = self._begun_s
        self._start(Twin(self.config))
        self._begin(begun_s, is_seen=False)

    def _runs_now(self, request: _Request, by_tokens: bool) -> bool:
        if by_tokens and request.streams and not request.spec.sequences > 1:
            partly = request.sequences[0].computed_tokens and not request.sequences[0].output_tokens
            return bool(request.tokens or partly)
        return bool(request.sequences[0].computed_tokens)

    def _stated(self, request: _Request, seq: Sequence, by_tokens: bool) -> RequestState:
        """A request that runs, as its tokens say, before the next step is scheduled."""
        row = _row(request, seq, 0)
        if not (by_tokens and request.tokens) or request.spec.sequences > 1:
            scheduled = {id(s): n for s, n in self._batch.scheduled} if self._batch else {}
            computed = seq.computed_tokens - scheduled.get(id(seq), 0)
            return replace(row, computed_tokens=max(0, computed))
        output = max(1, request.tokens)
        return replace(row, output_tokens=output, computed_tokens=row.prompt_tokens + output - 1)

    # --- limits ---

    def _count_running(self) -> int:
        return sum(1 for r in self._requests.values() if r.tokens and not r.ended_s)

    def _look(self, at_s: float) -> None:
        """See whether requests wait, where the engine does not say so."""
        if self._found.max_num_seqs or self._run:
            return
        waits = any(
            r.streams and not r.tokens and not r.ended_s and at_s - r.sent_s > 2 * _LOOK_EVERY_S
            for r in self._requests.values()
        )
        self._weigh(self._count_running(), waits, at_s)

    def _weigh(self, running: int, waits: bool, at_s: float) -> None:
        """Who runs while others wait is as many as may run."""
        if at_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = at_s
        self._looks.append((running, waits))
        if len(self._looks) == _LOOKS and all(waits for _, waits in self._looks):
            self._seats = max(self._seats, *(running for running, _ in self._looks))

    def _configuration(self) -> EngineConfig:
        seen = Limits(max_num_seqs=self._seats)
        known = self._given.beside(self._found).beside(seen).beside(ASSUMED)
        seats = max(known.max_num_seqs, self._seats)
        most = -(-known.max_model_len // known.block_size_tokens)
        return EngineConfig(
            model_name="",
            block_size_tokens=known.block_size_tokens,
            total_blocks=known.total_blocks or seats * most,
            max_num_seqs=seats,
            max_num_scheduled_tokens=known.max_num_batched_tokens,
            max_model_len=known.max_model_len,
            told_within_s=5 * TELL_EVERY_S,
            approximations=(OBSERVED,),
        )

    def _configure(self) -> None:
        if self._configuration() != self.config:
            self._correct()


def _samples(seq: Sequence) -> bool:
    """Whether the step in flight, of which it is, gives it a token."""
    return seq.computed_tokens >= seq.prompt_tokens + seq.output_tokens


def _row(request: _Request, seq: Sequence, scheduled: int, *, waits: bool = False) -> RequestState:
    spec = request.spec
    return RequestState(
        request_id=spec.request_id,
        foretell_id=spec.request_id,
        prompt_tokens=seq.prompt_tokens,
        output_tokens=0 if waits and request.streams else seq.output_tokens,
        computed_tokens=0 if waits else seq.computed_tokens,
        max_tokens=spec.max_tokens or _ENDLESS,
        arrival_unix_s=request.sent_s,
        cached_tokens=request.cached_tokens if waits else seq.cached_tokens,
        priority=spec.priority,
        predicted_output_tokens=spec.length.expected_tokens,
        scheduled_tokens=scheduled,
        preemptions=seq.preemptions,
    )
