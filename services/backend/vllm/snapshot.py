"""Turns vLLM's scheduler state into snapshots. Runs in the engine's hot loop."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm.v1.request import RequestStatus

from foretell.cosched.deadlines import job_of
from foretell.model import BatchShape, EngineConfig
from foretell.v1 import snapshot_pb2
from foretell.wire import config_to_proto
from services.backend.vllm.kv_groups import LeftBlocks
from services.backend.vllm.speculation import DraftCounts
from services.backend.vllm.steps import Instant, StepTracker, varint

ID_KEY = "foretell_id"
PREDICTED_KEY = "foretell_predicted_tokens"

_MAX_ID_LENGTH = 256
_UINT32_MAX = 2**32 - 1
# Of the fields `running` and `waiting` of a serialized snapshot.
_RUNNING_TAG, _WAITING_TAG = (
    bytes([snapshot_pb2.EngineSnapshot.DESCRIPTOR.fields_by_name[name].number << 3 | 2])
    for name in ("running", "waiting")
)
_NO_DRAFTS: Mapping[str, Sequence[int]] = {}
_AWAITS_GRAMMAR = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
_SINT32_MAX = 2**31 - 1
# A snapshot costs about a microsecond per request. Beyond this many requests only every second,
# third, ... step is published, which bounds the cost per step however long the queue grows.
_REQUESTS_PER_STEP = 1024

# What never changes in a request's life: id, foretell_id, prompt_tokens, max_tokens, priority,
# predicted_output_tokens, arrival_unix_s, TTFT and TPOT target, LoRA adapter.
_Facts = tuple[str, str, int, int, int, float, float, float, float, int]


class SnapshotRecorder:
    """Follows one scheduler and hands a snapshot of each new state to `publish`.

    It gets two parts of it, serialized (`SnapshotPublisher.send`). `waiting` lists the waiting
    requests in admission order. The methods raise whatever goes
    wrong; the caller keeps that from the engine.
    """

    def __init__(
        self,
        scheduler: Any,
        config: EngineConfig,
        waiting: Callable[[], list[Any]],
        publish: Callable[[bytes, bytes], None],
        *,
        instance_id: str,
        engine_run_id: str,
    ) -> None:
        self._scheduler = scheduler
        self._co_schedules = config.co_schedules
        self._constant = snapshot_pb2.EngineSnapshot(
            instance_id=instance_id, engine_run_id=engine_run_id, config=config_to_proto(config)
        ).SerializeToString()
        self._left = LeftBlocks.of(scheduler, config)
        self._drafts, self._held = None, None
        if config.num_speculative_tokens:
            self._drafts = DraftCounts(config.num_speculative_tokens)
            managers = scheduler.kv_cache_manager.coordinator.single_type_managers
            self._held = managers[0].req_to_blocks
        self._list_waiting = waiting
        self._publish = publish
        self._free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks
        self._steps = StepTracker()
        self._facts: dict[str, _Facts] = {}
        self._cached: dict[str, int] = {}
        self._structured: set[str] = set()
        targets = config.co_schedules
        adapters = config.max_loras > 0
        self._running, self._waiting = (
            _Queue(
                tag,
                self._facts,
                self._cached,
                self._structured,
                targets=targets,
                adapters=adapters,
            )
            for tag in (_RUNNING_TAG, _WAITING_TAG)
        )
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
            self._structured.discard(request_id)
            if self._left:
                self._left.forget(request_id)
        self._note_admissions(output)
        tokens = output.num_scheduled_tokens
        shape = batch_shape(tokens, self._scheduler.requests, output.scheduled_spec_decode_tokens)
        self._steps.scheduled(output, shape, started)
        running, waiting = self._scheduler.running, self._list_waiting()
        idle = not (running or waiting or tokens)
        if idle and self._idle:
            return  # the flush of finished ids: nothing new
        self._idle = idle and not self._steps.in_flight
        self._unpublished += 1
        if self._unpublished * _REQUESTS_PER_STEP > len(running) + len(waiting):
            self._emit(running, waiting, tokens, Instant.now())

    def updating(self, output: Any, sampled: Any, started: Instant) -> None:
        """`update_from_output()` is about to apply `output` at `started`, which gave `sampled`."""
        self._steps.updating(output, started)
        if self._drafts:
            self._drafts.count(output, sampled, self._scheduler.requests)

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
        """Publish the state, put together of parts that are serialized already.

        One after another they are a serialized message, too: protobuf merges them.
        """
        self._unpublished = 0
        self._sequence += 1
        varying = snapshot_pb2.EngineSnapshot(
            sequence=self._sequence,
            taken_unix_s=at.unix_s,
            published_unix_s=at.unix_s,
            free_blocks=self._free_blocks(),
        )
        if self._co_schedules:
            expected = self._scheduler.planner.expected_online()
            varying.online_ttft_s, varying.usual_online_blocks = expected
        if self._drafts:
            varying.drafted_ratio[:], varying.accepted_ratio[:] = self._drafts.ratios()
        state = (
            self._constant,
            varying.SerializeToString(),
            self._running.packed(running, tokens, self._more_of_running),
            self._waiting.packed(waiting, tokens, self._more_of_waiting),
            self._steps.in_flight_packed(),
        )
        self._publish(b"".join(state), self._steps.take_completed_packed())

    def _more_of_running(self, columns: snapshot_pb2.RequestColumns, ids: Sequence[str]) -> None:
        """The columns that only some engines have."""
        if self._left:
            columns.left_blocks.extend(self._left.count(ids))
        if self._held is not None:
            columns.held_blocks.extend([len(self._held.get(i, ())) for i in ids])

    def _more_of_waiting(self, columns: snapshot_pb2.RequestColumns, ids: Sequence[str]) -> None:
        if self._structured:
            known = self._scheduler.requests
            columns.awaits_grammar.extend([known[i].status is _AWAITS_GRAMMAR for i in ids])

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
    """Packs the columns of one queue, reusing what is the same as in the last snapshot.

    While the same requests stand in the queue and none was admitted since, only four columns
    change: in particular preemptions and prefix-cache hits change by way of an admission only.
    """

    def __init__(
        self,
        tag: bytes,
        facts: dict[str, _Facts],
        cached: Mapping[str, int],
        structured: set[str],
        *,
        targets: bool,
        adapters: bool,
    ) -> None:
        """`tag` goes before the queue in a serialized snapshot.

        `targets`, `adapters`: the engine makes use of those of its requests. `structured` gets the
        ids of requests with structured output.
        """
        self._tag = tag
        self._structured = structured
        self._targets, self._adapters = targets, adapters
        self._facts = facts
        self._cached = cached
        self._requests: list[Any] = []
        self._ids: Sequence[str] = ()
        self._constant = b""
        self._resting = b""

    def forget(self) -> None:
        """A request was admitted: build the constant columns anew."""
        self._requests = []

    def packed(
        self,
        requests: Sequence[Any],
        tokens: Mapping[str, int],
        more: Callable[[snapshot_pb2.RequestColumns, Sequence[str]], None],
    ) -> bytes:
        """The field of `requests`, of which `tokens` were scheduled; `more` adds columns."""
        if not requests:
            return b""
        if self._requests != requests:
            self._build(list(requests))
        elif self._resting:
            return self._resting
        varying = snapshot_pb2.RequestColumns(
            output_tokens=[len(r._output_token_ids) for r in requests],  # spares a call of each
            computed_tokens=[r.num_computed_tokens for r in requests],
            scheduled_tokens=[tokens.get(i, 0) for i in self._ids],
            in_flight_tokens=[r.num_output_placeholders for r in requests],
        )
        more(varying, self._ids)
        packed = varying.SerializeToString()
        size = varint(len(self._constant) + len(packed))
        result = b"".join((self._tag, size, self._constant, packed))
        if self._tag == _WAITING_TAG and not self._structured:
            # Who waits changes only by leaving, unless output of before a preemption comes in.
            self._resting = b"" if any(r.num_preemptions for r in requests) else result
        return result

    def _build(self, requests: list[Any]) -> None:
        known = self._facts
        rows = [known.get(r.request_id) or self._learn(r) for r in requests]
        facts = tuple(zip(*rows, strict=True))
        ids, foretell_ids, prompts, limits, priorities, predicted, arrivals, *rest = facts
        ttfts, tpots, adapters = rest
        self._requests, self._resting = requests, b""
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
            adapter=adapters if self._adapters else (),
        ).SerializeToString()

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
            request.lora_request.lora_int_id if request.lora_request else 0,
        )
        self._facts[request.request_id] = facts
        if request.use_structured_output:
            self._structured.add(request.request_id)
        return facts


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
