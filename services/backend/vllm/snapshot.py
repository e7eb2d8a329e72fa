"""Turns vLLM's scheduler state into snapshots. Runs in the engine's hot loop."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from time import monotonic, time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from foretell.model import BatchShape, EngineConfig
from foretell.services.backend.vllm.columns import Columns, Facts
from foretell.services.backend.vllm.encoder import EncoderState
from foretell.services.backend.vllm.kv_groups import LeftBlocks
from foretell.services.backend.vllm.pace import Growing, Growth, Pace
from foretell.services.backend.vllm.packing import FixedFields
from foretell.services.backend.vllm.ranks import StepCounter
from foretell.services.backend.vllm.reading import EMPTY, Queue, Reading, RequestReader
from foretell.services.backend.vllm.speculation import DraftCounts
from foretell.services.backend.vllm.steps import Instant, StepTracker
from foretell.v1 import snapshot_pb2
from foretell.wire import config_to_proto

_GROWN = FixedFields(
    snapshot_pb2.EngineSnapshot,
    "grown_computed_tokens",
    "grown_output_tokens",
    "grown_in_flight_tokens",
)
_HEAD = FixedFields(
    snapshot_pb2.EngineSnapshot, "sequence", "taken_unix_s", "published_unix_s", "free_blocks"
)
# A snapshot costs about a microsecond per request. Beyond this many requests only every second,
# third, ... step is published, which bounds the cost per step however long the queue grows.
_REQUESTS_PER_STEP = 1024
_MOST_UNTOLD = 64  # starts and ends of steps: catching up with more would delay a step
# A start or an end of a step, to be reported later: the step's output, a number, a state, and the
# monotonic time. Start: its decode pairs and the blocks that were free, or -1 and a `Reading`.
# End: 0 and what was sampled.
_Untold = tuple[Any, int, Any, float]
_READ = -1


class SnapshotRecorder:
    """Follows one scheduler and passes a snapshot of each new state to `publish`.

    `publish` gets three serialized parts of it (`SnapshotPublisher.send`). `waiting` lists the
    waiting requests in admission order. Methods may raise any error; the caller must keep it from
    the engine.

    If the configuration says that steps are reported late, the engine's thread only notes down
    what changes, and another thread must call `tell_late` often.
    """

    def __init__(
        self,
        scheduler: Any,
        config: EngineConfig,
        waiting: Callable[[], list[Any]],
        publish: Callable[[bytes, bytes, bytes], None],
        *,
        instance_id: str,
        engine_run_id: str,
    ) -> None:
        self._scheduler = scheduler
        self._planner = scheduler.planner if config.co_schedules else None
        self._begun = 0
        self._constant = snapshot_pb2.EngineSnapshot(
            instance_id=instance_id, engine_run_id=engine_run_id, config=config_to_proto(config)
        ).SerializeToString()
        self._left = LeftBlocks.of(scheduler, config)
        self._encoder = EncoderState.of(scheduler, config)
        self._drafts, self._held = None, None
        if config.num_speculative_tokens:
            self._drafts = DraftCounts(config.num_speculative_tokens)
            managers = scheduler.kv_cache_manager.coordinator.single_type_managers
            self._held = managers[0].req_to_blocks
        self.step_counter: StepCounter | None = None
        """Counts calls of `schedule()` if their number decides whether prompts are put off."""
        if config.prefill_schedule_interval:
            self.step_counter = StepCounter(config.prefill_schedule_interval)
        self._list_waiting = waiting
        self._publish = publish
        self._free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks
        self._steps = StepTracker()
        # Only this class counts scheduled tokens as output to come (placeholders).
        self._is_async = isinstance(scheduler, AsyncScheduler)
        # With drafts no two steps are alike; and blocks that are freed early have to be counted.
        reads_all = self._drafts is not None or self._left is not None
        self._pace = None if reads_all else Pace(in_flight=2 if self._is_async else 1)
        self._goes_on = self._pace.goes_on if self._pace else lambda *_: 0
        # Says whether more may have changed than follows from an even step.
        self._changes: Callable[[], bool] | None = None
        if self._planner:
            self._changes = self._is_replanned
        elif self._encoder:
            self._changes = self._encoder.is_held
        self._growing = Growing()
        self._reader = RequestReader(
            scheduler, waiting, has_drafts=self._drafts is not None, most=_REQUESTS_PER_STEP
        )
        self._facts: dict[str, Facts] = {}
        self._cached: dict[str, int] = {}
        self._running, self._waiting = (
            Columns(
                field,
                self._facts,
                self._cached,
                self._encoder.learn if self._encoder else None,
                targets=self._planner.targets if self._planner else None,
                adapters=config.max_loras > 0,
            )
            for field in ("running", "waiting")
        )
        self._waiting_packed = b""
        self._waiting_queue = EMPTY
        self._base = self._constant
        self._requests = 0  # in `_base`
        self._sequence = 0
        self._within_s, self._soon_s = config.reported_within_s, config.reported_soon_s
        self._reported_s = 0.0
        self._tell_by_s = 0.0
        self.must_read = True
        """Whether requests have to be read at the next step. The caller sets it when it sees new
        ones."""
        self._untold: deque[_Untold] = deque()
        self._telling = Lock()  # guards all but reading requests and adding to `_untold`
        self.updating: Callable[[_Untold], None] = (
            self._updating_drafts if self._drafts else self._untold.append
        )
        """`update_from_output()` is about to apply an output. The argument is the output, 0, what
        was sampled, and the monotonic time: one tuple, so that `append` can be the hook itself,
        because each Python call after a step costs an engine about a microsecond."""
        self._unpublished = 0
        self._idle = False

    def attached(self) -> None:
        """The engine is up: publish its configuration before the first request."""
        with self._telling:
            self._rests()

    def missed_steps(self) -> None:
        """Discard all that was noted down, because steps were missed."""
        with self._telling:
            self._untold.clear()
            self._steps.lost_sight()
            self.must_read = True

    def scheduled(self, output: Any, started_s: float) -> None:
        """`schedule()`, called at the monotonic time `started_s`, has returned `output`."""
        pairs = 0
        if not (self.must_read or output.finished_req_ids or (self._changes and self._changes())):
            pairs = self._goes_on(output, self._scheduler.running)
        if pairs:
            self._untold.append((output, pairs, self._free_blocks(), started_s))
        else:
            self._untold.append((output, _READ, self._read(output), started_s))
        if started_s < self._tell_by_s and len(self._untold) < _MOST_UNTOLD:
            return
        with self._telling:
            if not self._tell(len(self._untold)):
                self._tell_reading(output, self._read(output), Instant.of(started_s))

    def _is_replanned(self) -> bool:
        assert self._planner is not None
        return self._planner.begun != self._begun or self._list_waiting() != self._reader.waiting

    def _read(self, output: Any) -> Reading:
        self.must_read = False
        reading = self._reader.read(output)
        if self._pace:
            self._pace.read(output, reading.running.requests, reading.running.rows)
        # Nothing announces that the grammar of a request is ready.
        if reading.waiting is None or any(reading.waiting.await_grammar):
            self.must_read = True
        return reading

    def tell_late(self) -> None:
        """Publish what was noted down: at once if requests were read, otherwise when it is due."""
        with self._telling:
            now_s = monotonic()
            noted = len(self._untold)
            is_time = (
                now_s >= self._reported_s + self._within_s - 2 * self._soon_s
                or noted >= _MOST_UNTOLD // 2
            )
            kinds = [self._untold[place][1] for place in range(noted)]
            read = [place for place, pairs in enumerate(kinds) if pairs == _READ]
            began = [place for place, pairs in enumerate(kinds) if pairs]
            last = read or (began if is_time else [])
            if last and not self._tell(last[-1] + 1):
                self.must_read = True
            self._tell_by_s = now_s + self._within_s

    def _tell(self, count: int) -> bool:
        """Publish the first `count` events that were noted down; the last is the start of a step.

        Of the others only the steps are reported. False: the requests have to be read again.
        """
        for _ in range(count - 1):
            self._count(*self._untold.popleft())
        output, pairs, state, at_s = self._untold.popleft()
        self._count(output, pairs, state, at_s)
        if pairs != _READ:
            return self._tell_growth(Instant.of(at_s), state)
        if state.waiting is not None:
            self._tell_reading(output, state, Instant.of(at_s))
        return True

    def _count(self, output: Any, pairs: int, state: Any, at_s: float) -> None:
        """Count the start or the end of a step."""
        at = Instant.of(at_s)
        if not pairs:
            self._steps.updating(output, at)
            self._growing.updating(output, state)
            return
        self._unpublished += 1
        if pairs != _READ:
            self._growing.began(output)
            shape = BatchShape(decode_seqs=len(output.num_scheduled_tokens), decode_pairs=pairs)
        else:
            self._forget(output.finished_req_ids)
            self._note_admissions(output)
            shape = state.shape_of(output)
            self._growing.read(output, state.running.requests, shape)
        self._steps.scheduled(output, shape, at)

    def _tell_reading(self, output: Any, reading: Reading, at: Instant) -> None:
        tokens = output.num_scheduled_tokens
        waiting = reading.waiting or EMPTY
        idle = not (reading.running.requests or waiting.requests or tokens)
        if idle and self._idle:
            return  # the flush of finished ids: nothing new
        self._idle = idle and not self._steps.in_flight
        if self._planner and self._planner.begun != self._begun:
            self._begun = self._planner.begun
            self._running.forget()  # their targets are counted from another moment now
        self._base = (
            self._constant
            + self._packed_running(reading.running, tokens)
            + self._packed_waiting(waiting, tokens)
        )
        self._requests = len(reading.running.requests) + len(waiting.requests)
        self._growing.anew()
        self._publish_state(None, at, reading.free_blocks)

    def _tell_growth(self, at: Instant, free_blocks: int) -> bool:
        growth = self._growing.growth()
        if growth and self._unpublished * _REQUESTS_PER_STEP > self._requests:
            self._publish_state(growth, at, free_blocks)
        return growth is not None

    def _forget(self, finished: Iterable[str]) -> None:
        for request_id in finished:
            self._facts.pop(request_id, None)
            self._cached.pop(request_id, None)
            if self._left:
                self._left.forget(request_id)
            if self._encoder:
                self._encoder.forget(request_id)

    def _updating_drafts(self, ended: _Untold) -> None:
        self._untold.append(ended)
        assert self._drafts
        output, _, sampled, _ = ended
        self._drafts.count(output, sampled, self._scheduler.requests)

    def updated(self) -> None:
        """`update_from_output()` has returned; need not be called while requests run."""
        if self._scheduler.running:
            return
        with self._telling:
            while self._untold:
                self._count(*self._untold.popleft())
            work_left = bool(self._list_waiting())
            self._steps.updated(work_left=work_left)
            if not work_left and not self._idle and not self._steps.in_flight:
                self._rests()

    def _rests(self) -> None:
        """Publish that the engine is idle."""
        self.must_read = self._idle = True
        self._base, self._requests = self._constant, 0
        self._waiting.forget()
        self._waiting_queue = EMPTY
        self._publish_state(None, Instant.now(), self._free_blocks())

    def _publish_state(self, growth: Growth | None, at: Instant, free_blocks: int) -> None:
        """Publish the requests as they were read last, and what has changed since then.

        The parts are already serialized. Concatenated, they are a serialized message, too: protobuf
        merges them. `growth` is by how much all running requests have grown since then.
        """
        self._unpublished = 0
        self._sequence += 1
        self._reported_s = monotonic()
        rest = (
            _HEAD.pack(self._sequence, at.unix_s, time(), free_blocks),
            self._more(),
            self._encoder.cache() if self._encoder else b"",
            self._grown(growth),
            self._steps.in_flight_packed(),
        )
        self._publish(self._base, b"".join(rest), self._steps.take_completed_packed())

    def _more(self) -> bytes:
        """The fields that only some engines have."""
        if not (self._planner or self._drafts or self.step_counter):
            return b""
        more = snapshot_pb2.EngineSnapshot()
        if self._planner:
            more.online_ttft_s, more.usual_online_blocks = self._planner.expected_online()
        if self.step_counter:
            more.step_counter = self.step_counter.following
            more.prefill_capacity_bound = self._scheduler.prefill_capacity_bound
        if self._drafts:
            more.drafted_ratio[:], more.accepted_ratio[:] = self._drafts.ratios()
        return more.SerializeToString()

    def _packed_running(self, running: Queue, tokens: Mapping[str, int]) -> bytes:
        if not running.requests:
            return b""
        self._running.learn(running)
        return self._running.packed(running, tokens, self._more_of_running(tokens))

    def _grown(self, growth: Growth | None) -> bytes:
        if growth is None:
            return b""
        in_flight = growth.computed - growth.output if self._is_async else 0
        return _GROWN.pack(growth.computed, growth.output, in_flight)

    def _packed_waiting(self, waiting: Queue, tokens: Mapping[str, int]) -> bytes:
        if not waiting.requests:
            self._waiting.forget()
            return b""
        is_new = self._waiting.learn(waiting)
        may_change = self._encoder is not None and self._encoder.holds_while_waiting
        if is_new or may_change or waiting is not self._waiting_queue:
            more = self._more_of_waiting(waiting)
            self._waiting_packed = self._waiting.packed(waiting, tokens, more)
            self._waiting_queue = waiting
        return self._waiting_packed

    def _more_of_running(self, tokens: Mapping[str, int]) -> bytes:
        """The columns that only some engines have; these report each step at once."""
        if self._left is None and self._held is None and self._encoder is None:
            return b""
        more, ids = snapshot_pb2.RequestColumns(), self._running.ids
        if self._left:
            more.left_blocks.extend(self._left.count(ids))
        if self._held is not None:
            more.held_blocks.extend([len(self._held.get(i, ())) for i in ids])
        if self._encoder:
            self._encoder.tell(ids, more)
        if more.encoder_inputs and self._is_async:
            known = self._scheduler.requests
            more.older_tokens.extend(
                [known[i].num_in_flight_tokens - tokens.get(i, 0) for i in ids]
            )
        return more.SerializeToString()

    def _more_of_waiting(self, waiting: Queue) -> bytes:
        awaits = any(waiting.await_grammar)
        if not (awaits or self._encoder):
            return b""
        more = snapshot_pb2.RequestColumns()
        if awaits:
            more.awaits_grammar.extend(map(int, waiting.await_grammar))
        if self._encoder:
            self._encoder.tell(self._waiting.ids, more)
        return more.SerializeToString()

    def _note_admissions(self, output: Any) -> None:
        """Note the prefix-cache hits of requests admitted or resumed in this step."""
        columns = output.scheduled_cached_reqs
        if not output.scheduled_new_reqs and not columns.resumed_req_ids:
            return
        self._running.forget()
        self._waiting.forget()
        for new in output.scheduled_new_reqs:
            self._cached[new.req_id] = new.num_computed_tokens
        for request_id, hits in zip(columns.req_ids, columns.num_computed_tokens, strict=True):
            if request_id in columns.resumed_req_ids:
                self._cached[request_id] = hits
