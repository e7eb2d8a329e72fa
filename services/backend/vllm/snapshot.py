"""Turns vLLM's scheduler state into snapshots. Runs in the engine's hot loop."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from time import monotonic, time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import RequestStatus

from foretell.model import BatchShape, EngineConfig
from foretell.v1 import snapshot_pb2
from foretell.wire import config_to_proto
from services.backend.vllm.columns import Columns, Facts
from services.backend.vllm.encoder import EncoderState
from services.backend.vllm.kv_groups import LeftBlocks
from services.backend.vllm.pace import Growth, Pace
from services.backend.vllm.packing import Fixed
from services.backend.vllm.speculation import DraftCounts
from services.backend.vllm.steps import Instant, StepTracker

_GROWN = Fixed(
    snapshot_pb2.EngineSnapshot,
    "grown_computed_tokens",
    "grown_output_tokens",
    "grown_in_flight_tokens",
)
_HEAD = Fixed(
    snapshot_pb2.EngineSnapshot, "sequence", "taken_unix_s", "published_unix_s", "free_blocks"
)
_NO_DRAFTS: Mapping[str, Sequence[int]] = {}
_AWAITS_GRAMMAR = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
# A snapshot costs about a microsecond per request. Beyond this many requests only every second,
# third, ... step is published, which bounds the cost per step however long the queue grows.
_REQUESTS_PER_STEP = 1024
_MOST_UNTOLD = 32  # begins and ends of steps: to catch up with more would hold a step up
# What is told of one step later: its output, its decode pairs, the blocks that were free then, and
# when it began; or 0, what was sampled, and when it ended.
_Untold = tuple[Any, int, Any, float]


class SnapshotRecorder:
    """Follows one scheduler and hands a snapshot of each new state to `publish`.

    It gets three parts of it, serialized (`SnapshotPublisher.send`). `waiting` lists the waiting
    requests in admission order. The methods raise whatever goes wrong; the caller keeps that from
    the engine. All but `tell_late` are for the engine's thread.
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
        self._list_waiting = waiting
        self._publish = publish
        self._free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks
        self._steps = StepTracker()
        # With drafts no two steps are alike; and blocks that are left behind have to be counted.
        self._pace = None if self._drafts or self._left else Pace()
        # Only this one counts what is scheduled as output to come.
        self._is_async = isinstance(scheduler, AsyncScheduler)
        self._facts: dict[str, Facts] = {}
        self._cached: dict[str, int] = {}
        self._structured: set[str] = set()
        self._running, self._waiting = (
            Columns(
                field,
                self._facts,
                self._cached,
                self._structured,
                self._encoder.learn if self._encoder else None,
                targets=self._planner.targets if self._planner else None,
                adapters=config.max_loras > 0,
            )
            for field in ("running", "waiting")
        )
        self._running_packed = self._waiting_packed = b""
        self._waiting_rests = False
        self._base = self._constant
        self._sequence = 0
        self._told_within_s = config.told_within_s
        self._silent_until_s = 0.0
        self.has_arrivals = False
        """Requests were added since the last step; to be set by whoever sees them."""
        self._untold: deque[_Untold] = deque()
        self._telling = Lock()  # for all but `_pace.goes_on` and adding to `_untold`
        self.updating: Callable[[_Untold], None] = (
            self._updating_drafts if self._drafts else self._untold.append
        )
        """`update_from_output()` is about to apply an output: it, 0, what was sampled, and the time
        on the monotonic clock. One argument, as after a step each call in Python costs an engine
        about a microsecond."""
        self._unpublished = 0
        self._idle = False

    def attached(self) -> None:
        """The engine is up: tell its configuration before the first request."""
        with self._telling:
            self._emit([], [], {}, Instant.now())
            self._idle = True

    def scheduled(self, output: Any, started_s: float) -> None:
        """`schedule()`, called at `started_s` of the monotonic clock, has returned `output`."""
        pairs = self._pace.goes_on(output, self._scheduler.running) if self._pace else 0
        if (
            pairs
            and started_s < self._silent_until_s
            and len(self._untold) < _MOST_UNTOLD
            and not (output.finished_req_ids or self.has_arrivals)
        ):
            self._untold.append((output, pairs, self._free_blocks(), started_s))
            return
        with self._telling:
            self._catch_up(len(self._untold))
            self._tell(output, pairs, Instant.of(started_s))

    def tell_late(self) -> None:
        """Tell the steps that were only noted down; from a thread of its own."""
        with self._telling:
            untold = list(self._untold)
            begun = [i for i, (_, pairs, _, _) in enumerate(untold) if pairs]
            if not begun or self._pace is None:
                return
            self._catch_up(begun[-1] + 1)
            growth = self._pace.growth()
            if growth is None:
                self._silent_until_s = 0.0  # the engine's thread has to read its requests
                return
            _, _, free_blocks, at_s = untold[begun[-1]]
            self._publish_state(growth, Instant.of(at_s), free_blocks)
            self._silent_until_s = monotonic() + self._told_within_s

    def _tell(self, output: Any, pairs: int, started: Instant) -> None:
        """All earlier steps are counted: tell this one."""
        running = self._scheduler.running
        self.has_arrivals = False
        self._forget(output.finished_req_ids)
        self._note_admissions(output)
        if self._planner and self._planner.begun != self._begun:
            self._begun = self._planner.begun
            self._running.forget()  # their targets are counted from another moment now
        tokens = output.num_scheduled_tokens
        waiting = self._list_waiting()
        self._steps.scheduled(output, self._shape(output, pairs), started)
        idle = not (running or waiting or tokens)
        if idle and self._idle:
            return  # the flush of finished ids: nothing new
        self._idle = idle and not self._steps.in_flight
        self._unpublished += 1
        if self._unpublished * _REQUESTS_PER_STEP > len(running) + len(waiting):
            read = self._encoder is not None and self._encoder.is_held()
            growth = self._pace.growth() if self._pace and not read else None
            self._emit(running, waiting, tokens, Instant.now(), growth)

    def _catch_up(self, count: int) -> None:
        """Count the first `count` beginnings and ends of steps that were noted down."""
        for _ in range(count):
            output, pairs, sampled, at_s = self._untold.popleft()
            at = Instant.of(at_s)
            if pairs:
                self._steps.scheduled(output, self._shape(output, pairs), at)
                continue
            self._steps.updating(output, at)
            if self._pace:
                self._pace.updating(output, sampled)

    def _forget(self, finished: Iterable[str]) -> None:
        for request_id in finished:
            self._facts.pop(request_id, None)
            self._cached.pop(request_id, None)
            self._structured.discard(request_id)
            if self._left:
                self._left.forget(request_id)
            if self._encoder:
                self._encoder.forget(request_id)

    def _shape(self, output: Any, pairs: int) -> BatchShape:
        tokens = output.num_scheduled_tokens
        if pairs:
            if self._pace:
                self._pace.began(output)
            return BatchShape(decode_seqs=len(tokens), decode_pairs=pairs)
        drafts = output.scheduled_spec_decode_tokens
        shape = batch_shape(tokens, self._scheduler.requests, drafts)
        if self._pace:
            self._pace.read(output, shape)
        return shape

    def _updating_drafts(self, ended: _Untold) -> None:
        self._untold.append(ended)
        assert self._drafts
        output, _, sampled, _ = ended
        self._drafts.count(output, sampled, self._scheduler.requests)

    def updated(self) -> None:
        """`update_from_output()` has returned; it may be left out while requests run."""
        if self._scheduler.running:
            return
        with self._telling:
            self._catch_up(len(self._untold))
            self._rest()

    def _rest(self) -> None:
        """Nothing runs any more."""
        work_left = bool(self._list_waiting())
        self._steps.updated(work_left=work_left)
        if not work_left and not self._idle and not self._steps.in_flight:
            self._emit([], [], {}, Instant.now())
            self._idle = True

    def _emit(
        self,
        running: Sequence[Any],
        waiting: Sequence[Any],
        tokens: Mapping[str, int],
        at: Instant,
        growth: Growth | None = None,
    ) -> None:
        """Publish the state, put together of parts that are serialized already.

        One after another they are a serialized message, too: protobuf merges them. `growth` is what
        all running requests have grown by since they were read, if it is known.
        """
        running_packed = self._running_packed
        if growth is None:
            running_packed = self._packed_running(running, tokens)
            if self._pace:
                self._pace.anew()
        waiting_packed = self._packed_waiting(waiting, tokens)
        if running_packed is not self._running_packed or waiting_packed is not self._waiting_packed:
            self._running_packed, self._waiting_packed = running_packed, waiting_packed
            self._base = self._constant + running_packed + waiting_packed
        self._publish_state(growth, at, self._free_blocks())
        # Requests that wait may change without notice, as when they await a grammar.
        rests = self._waiting_rests or not waiting
        self._silent_until_s = at.monotonic_s + self._told_within_s if rests else 0.0

    def _publish_state(self, growth: Growth | None, at: Instant, free_blocks: int) -> None:
        """Publish the requests as they were read last, and what has changed since then."""
        self._unpublished = 0
        self._sequence += 1
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
        if not (self._planner or self._drafts):
            return b""
        more = snapshot_pb2.EngineSnapshot()
        if self._planner:
            more.online_ttft_s, more.usual_online_blocks = self._planner.expected_online()
        if self._drafts:
            more.drafted_ratio[:], more.accepted_ratio[:] = self._drafts.ratios()
        return more.SerializeToString()

    def _packed_running(self, running: Sequence[Any], tokens: Mapping[str, int]) -> bytes:
        if not running:
            return b""
        self._running.learn(running)
        return self._running.packed(tokens, self._more_of_running(tokens))

    def _grown(self, growth: Growth | None) -> bytes:
        if growth is None:
            return b""
        in_flight = growth.computed - growth.output if self._is_async else 0
        return _GROWN.pack(growth.computed, growth.output, in_flight)

    def _packed_waiting(self, waiting: Sequence[Any], tokens: Mapping[str, int]) -> bytes:
        if not waiting:
            self._waiting.forget()
            return b""
        if not self._waiting.learn(waiting) and self._waiting_rests:
            return self._waiting_packed
        # Who waits changes only by leaving, unless output of before a preemption comes in.
        may_change = self._structured or (self._encoder and self._encoder.holds_while_waiting)
        self._waiting_rests = not (may_change or any(r.num_preemptions for r in waiting))
        return self._waiting.packed(tokens, self._more_of_waiting())

    def _more_of_running(self, tokens: Mapping[str, int]) -> bytes:
        """The columns that only some engines have."""
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

    def _more_of_waiting(self) -> bytes:
        if not (self._structured or self._encoder):
            return b""
        more, known, ids = (
            snapshot_pb2.RequestColumns(),
            self._scheduler.requests,
            self._waiting.ids,
        )
        if self._structured:
            more.awaits_grammar.extend([int(known[i].status is _AWAITS_GRAMMAR) for i in ids])
        if self._encoder:
            self._encoder.tell(ids, more)
        return more.SerializeToString()

    def _note_admissions(self, output: Any) -> None:
        """Prefix-cache hits of the requests admitted in this step, first time or resumed."""
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


def batch_shape(
    tokens: Mapping[str, int],
    requests: Mapping[str, Any],
    drafts: Mapping[str, Sequence[int]] = _NO_DRAFTS,
) -> BatchShape:
    """The shape of a step that has just been scheduled (its tokens count as computed).

    A sequence decodes iff it computes one token, beside its `drafts`, behind a fully computed
    prompt.
    """
    prefill_seqs = prefill_tokens = prefill_pairs = decode_seqs = decode_pairs = drafted = 0
    for request_id, count in tokens.items():
        request = requests[request_id]
        computed = request.num_computed_tokens
        if drafts and request_id in drafts:
            verified = len(drafts[request_id])
            drafted += verified
            count -= verified  # noqa: PLW2901
            computed -= verified
        if count == 1 and computed > request.num_prompt_tokens:
            decode_seqs += 1
            decode_pairs += computed
        else:
            prefill_seqs += 1
            prefill_tokens += count
            prefill_pairs += count * (computed - count) + count * (count + 1) // 2
    return BatchShape(
        prefill_seqs, prefill_tokens, prefill_pairs, decode_seqs, decode_pairs, drafted
    )
