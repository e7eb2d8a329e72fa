"""Turns vLLM's scheduler state into snapshots. Runs in the engine's hot loop."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foretell.cosched.deadlines import job_of
from foretell.model import BatchShape, EngineConfig
from foretell.v1 import snapshot_pb2
from foretell.wire import config_to_proto, steps_to_proto
from services.backend.vllm.kv_groups import LeftBlocks
from services.backend.vllm.steps import Instant, StepTracker

ID_KEY = "foretell_id"
PREDICTED_KEY = "foretell_predicted_tokens"

_MAX_ID_LENGTH = 256
_UINT32_MAX = 2**32 - 1
_SINT32_MAX = 2**31 - 1
# A snapshot costs about a microsecond per request. Beyond this many requests only every second,
# third, ... step is published, which bounds the cost per step however long the queue grows.
_REQUESTS_PER_STEP = 1024

# What never changes in a request's life: id, foretell_id, prompt_tokens, max_tokens, priority,
# predicted_output_tokens, arrival_unix_s, TTFT and TPOT target.
_Facts = tuple[str, str, int, int, int, float, float, float, float]


class SnapshotRecorder:
    """Follows one scheduler and hands a snapshot of each new state to `publish`.

    `waiting` lists the waiting requests in admission order. The methods raise whatever goes
    wrong; the caller keeps that from the engine.
    """

    def __init__(
        self,
        scheduler: Any,
        config: EngineConfig,
        waiting: Callable[[], list[Any]],
        publish: Callable[[snapshot_pb2.EngineSnapshot], None],
        *,
        instance_id: str,
        engine_run_id: str,
    ) -> None:
        self._scheduler = scheduler
        self._config = config_to_proto(config)
        self._left = LeftBlocks.of(scheduler, config)
        self._list_waiting = waiting
        self._publish = publish
        self._instance_id = instance_id
        self._engine_run_id = engine_run_id
        self._free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks
        self._steps = StepTracker()
        self._facts: dict[str, _Facts] = {}
        self._cached: dict[str, int] = {}
        targets = config.co_schedules
        self._running = _Queue(self._facts, self._cached, targets=targets)
        self._waiting = _Queue(self._facts, self._cached, targets=targets)
        self._sequence = 0
        self._unpublished = 0
        self._idle = False

    def attached(self) -> None:
        """The engine is up: tell its configuration before the first request."""
        self._emit([], [], {}, Instant.now())
        self._idle = True

    def scheduled(self, output: Any, started: Instant) -> None:
        """`schedule()`, called at `started`, has returned `output`."""
        for request_id in output.finished_req_ids:
            self._facts.pop(request_id, None)
            self._cached.pop(request_id, None)
            if self._left:
                self._left.forget(request_id)
        self._note_admissions(output)
        tokens = output.num_scheduled_tokens
        self._steps.scheduled(output, batch_shape(tokens, self._scheduler.requests), started)
        running, waiting = self._scheduler.running, self._list_waiting()
        idle = not (running or waiting or tokens)
        if idle and self._idle:
            return  # the flush of finished ids: nothing new
        self._idle = idle and not self._steps.in_flight
        self._unpublished += 1
        if self._unpublished * _REQUESTS_PER_STEP > len(running) + len(waiting):
            self._emit(running, waiting, tokens, Instant.now())

    def updating(self, output: Any, started: Instant) -> None:
        """`update_from_output()` is about to apply `output` at `started`."""
        self._steps.updating(output, started)

    def updated(self) -> None:
        """`update_from_output()` has returned."""
        scheduler = self._scheduler
        waiting = self._list_waiting() if not scheduler.running else ()
        work_left = bool(scheduler.running or waiting)
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
    ) -> None:
        self._unpublished = 0
        self._sequence += 1
        snapshot = snapshot_pb2.EngineSnapshot(
            instance_id=self._instance_id,
            engine_run_id=self._engine_run_id,
            sequence=self._sequence,
            taken_unix_s=at.unix_s,
            published_unix_s=at.unix_s,
            config=self._config,
            free_blocks=self._free_blocks(),
            steps_in_flight=steps_to_proto(self._steps.in_flight),
            completed_steps=steps_to_proto(self._steps.take_completed()),
        )
        if self._config.co_schedules:
            expected = self._scheduler.planner.expected_online()
            snapshot.online_ttft_s, snapshot.usual_online_blocks = expected
        self._running.fill(snapshot.running, running, tokens)
        self._waiting.fill(snapshot.waiting, waiting, tokens)
        if self._left:
            snapshot.running.left_blocks.extend(self._left.count(snapshot.running.request_id))
        self._publish(snapshot)

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


class _Queue:
    """Fills the columns of one queue, reusing what is the same as in the last snapshot.

    While the same requests stand in the queue and none was admitted since, only four columns
    change: in particular preemptions and prefix-cache hits change by way of an admission only.
    """

    def __init__(
        self, facts: dict[str, _Facts], cached: Mapping[str, int], *, targets: bool
    ) -> None:
        """`targets`: the engine makes use of those of its requests."""
        self._targets = targets
        self._facts = facts
        self._cached = cached
        self._requests: list[Any] = []
        self._ids: Sequence[str] = ()
        self._constant = snapshot_pb2.RequestColumns()

    def forget(self) -> None:
        """A request was admitted: build the constant columns anew."""
        self._requests = []

    def fill(
        self,
        columns: snapshot_pb2.RequestColumns,
        requests: Sequence[Any],
        tokens: Mapping[str, int],
    ) -> None:
        """Write `requests`, of which `tokens` were scheduled, into the empty `columns`."""
        if not requests:
            return
        if self._requests != requests:
            self._build(list(requests))
        columns.CopyFrom(self._constant)
        columns.output_tokens.extend([r.num_output_tokens for r in requests])
        columns.computed_tokens.extend([r.num_computed_tokens for r in requests])
        columns.scheduled_tokens.extend([tokens.get(i, 0) for i in self._ids])
        columns.in_flight_tokens.extend([r.num_output_placeholders for r in requests])

    def _build(self, requests: list[Any]) -> None:
        known = self._facts
        rows = [known.get(r.request_id) or self._learn(r) for r in requests]
        ids, foretell_ids, prompts, limits, priorities, predicted, arrivals, ttfts, tpots = zip(
            *rows, strict=True
        )
        self._requests = requests
        self._ids = ids
        self._constant = snapshot_pb2.RequestColumns(
            request_id=ids,
            foretell_id=foretell_ids,
            prompt_tokens=prompts,
            cached_tokens=[self._cached.get(i, 0) for i in ids],
            max_tokens=limits,
            priority=priorities,
            predicted_output_tokens=predicted,
            arrival_unix_s=arrivals,
            preemptions=[r.num_preemptions for r in requests],
            ttft_target_s=ttfts if self._targets else (),
            tpot_target_s=tpots if self._targets else (),
        )

    def _learn(self, request: Any) -> _Facts:
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        targets = job_of(extra).targets
        facts = (
            request.request_id,
            clean_id(extra.get(ID_KEY)),
            request.num_prompt_tokens,
            min(request.max_tokens, _UINT32_MAX),
            max(-_SINT32_MAX, min(request.priority, _SINT32_MAX)),
            clean_prediction(extra.get(PREDICTED_KEY)),
            request.arrival_time,
            *targets.told_s,
        )
        self._facts[request.request_id] = facts
        return facts


def batch_shape(tokens: Mapping[str, int], requests: Mapping[str, Any]) -> BatchShape:
    """The shape of a step that has just been scheduled (its tokens count as computed).

    A sequence decodes iff it computes one token behind a fully computed prompt.
    """
    prefill_seqs = prefill_tokens = prefill_pairs = decode_seqs = decode_pairs = 0
    for request_id, count in tokens.items():
        request = requests[request_id]
        computed = request.num_computed_tokens
        if count == 1 and computed > request.num_prompt_tokens:
            decode_seqs += 1
            decode_pairs += computed
        else:
            prefill_seqs += 1
            prefill_tokens += count
            prefill_pairs += count * (computed - count) + count * (count + 1) // 2
    return BatchShape(prefill_seqs, prefill_tokens, prefill_pairs, decode_seqs, decode_pairs)


def clean_id(value: Any) -> str:
    """`value` if it can be an id, else empty: clients can put anything into `vllm_xargs`."""
    usable = isinstance(value, str) and value.isascii() and len(value) <= _MAX_ID_LENGTH
    return str(value) if usable else ""


def clean_prediction(value: Any) -> float:
    """`value` as a token count, 0 (nobody predicted) if it is none."""
    try:
        tokens = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(tokens, float(_UINT32_MAX)) if math.isfinite(tokens) and tokens > 0 else 0.0
