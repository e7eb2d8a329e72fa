"""The scheduler's own state, with which the plugin's snapshots are compared."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from foretell.model import (
    BatchShape,
    CachedInput,
    EncoderInput,
    EngineSnapshot,
    RequestState,
    content_number,
)
from foretell.tools.verify.engine_loop import VerifiedLoop
from foretell.tools.verify.installed import KNOWS_ENCODING
from tests.vllm.scenarios import extra_args


class EngineState(NamedTuple):
    """The state at one moment, without cache hits of waiting requests: these are reported late."""

    running: list[RequestState]
    waiting: set[RequestState]
    free_blocks: int


def state_of(snapshot: EngineSnapshot) -> EngineState:
    """The state that a snapshot shows."""
    waiting = {replace(row, cached_tokens=0) for row in snapshot.waiting}
    return EngineState(list(snapshot.running), waiting, snapshot.free_blocks)


class Truth:
    """Reads the scheduler independently of the plugin, and follows what each step computes."""

    def __init__(self, loop: VerifiedLoop) -> None:
        self.scheduler = loop.scheduler
        self.tokens: dict[str, int] = {}
        self.tokens_before: dict[str, int] = {}
        self.hits: dict[str, int] = {}
        self.shapes: list[BatchShape] = []
        # Older versions have another encoder cache, which is not published.
        self.tells_inputs = KNOWS_ENCODING and self.scheduler.max_num_encoder_input_tokens > 0
        self.cached = self.unused = 0  # published entries of the encoder cache that were compared
        stock = self.scheduler.kv_cache_manager.get_computed_blocks

        def counted(request: Any, *most: Any) -> Any:  # 0.33 and later pass the most tokens to hit
            result = stock(request, *most)
            self.hits[request.request_id] = result[1]
            return result

        self.scheduler.kv_cache_manager.get_computed_blocks = counted
        after = self.scheduler._update_after_schedule

        def scheduled(output: Any) -> None:
            self.tokens_before, self.tokens = self.tokens, dict(output.num_scheduled_tokens)
            if self.tokens:
                self.shapes.append(self._shape(output.scheduled_spec_decode_tokens))
            after(output)

        self.scheduler._update_after_schedule = scheduled

    def _shape(self, drafts: dict[str, list[int]]) -> BatchShape:
        """Counts pair by pair, before the scheduler advances `num_computed_tokens`."""
        counts = dict.fromkeys(BatchShape.__dataclass_fields__, 0)
        for request_id, count in self.tokens.items():
            request = self.scheduler.requests[request_id]
            behind = request.num_computed_tokens
            verified = len(drafts.get(request_id, ()))
            count -= verified  # noqa: PLW2901
            counts["draft_tokens"] += verified
            decodes = count == 1 and behind >= len(request.prompt_token_ids)
            kind = "decode" if decodes else "prefill"
            counts[f"{kind}_seqs"] += 1
            counts[f"{kind}_pairs"] += sum(behind + i + 1 for i in range(count))
            if not decodes:
                counts["prefill_tokens"] += count
        return BatchShape(**counts)

    def left_blocks(self, request_id: str) -> int:
        last = self.scheduler.kv_cache_manager.coordinator.single_type_managers[-1]
        return sum(block.is_null for block in last.req_to_blocks.get(request_id, ()))

    def held_blocks(self, request: Any) -> int:
        """Only of running requests, where drafts need more blocks than tokens do; otherwise 0."""
        if not self.scheduler.num_spec_tokens or request not in self.scheduler.running:
            return 0
        (manager,) = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        return len(manager.req_to_blocks[request.request_id])

    def encoder_inputs(self, request: Any) -> tuple[EncoderInput, ...]:
        """The inputs that vLLM derives from a request's features, and which of them are cached."""
        if not self.tells_inputs:
            return ()
        held = self.scheduler.encoder_cache_manager.get_cached_input_ids(request)
        return tuple(
            EncoderInput(
                content_number(feature.identifier),
                feature.mm_position.offset,
                feature.mm_position.length,
                feature.mm_position.get_num_embeds(),
                feature.mm_position.extract_embeds_range()[0][0] - feature.mm_position.offset,
                feature.mm_position.extract_embeds_range()[-1][1] + 1 - feature.mm_position.offset,
                int(place in held),
            )
            for place, feature in enumerate(request.mm_features)
        )

    def check_encoder_cache(self, cache: Sequence[CachedInput]) -> None:
        manager = self.scheduler.encoder_cache_manager
        if not self.tells_inputs:
            assert cache == ()
            return
        told = {content_number(name): count for name, count in manager.num_embeds_by_hash.items()}
        assert dict(cache) == told
        unused = [content_number(name) for name in manager.freeable]
        assert [each.content for each in cache][: len(unused)] == unused
        self.cached += len(cache)
        self.unused += len(unused)

    def row(self, request: Any) -> RequestState:
        extra = extra_args(int(request.request_id[1:])) or {}
        admitted = request in self.scheduler.running or request.num_preemptions > 0
        return RequestState(
            request_id=request.request_id,
            foretell_id=extra.get("foretell_id", ""),
            prompt_tokens=len(request.prompt_token_ids),
            output_tokens=len(request.output_token_ids),
            computed_tokens=request.num_computed_tokens,
            max_tokens=request.sampling_params.max_tokens,
            arrival_unix_s=request.arrival_time,
            cached_tokens=self.hits.get(request.request_id, 0) if admitted else 0,
            priority=request.priority,
            predicted_output_tokens=extra.get("foretell_predicted_tokens", 0.0),
            scheduled_tokens=self.tokens.get(request.request_id, 0),
            in_flight_tokens=request.num_output_placeholders,
            preemptions=request.num_preemptions,
            left_blocks=self.left_blocks(request.request_id),
            held_blocks=self.held_blocks(request) if admitted else 0,
            encoder_inputs=self.encoder_inputs(request),
            older_tokens=self.older_tokens(request) if request in self.scheduler.running else 0,
        )

    def older_tokens(self, request: Any) -> int:
        """0 unless a running request has images and two steps can be in flight."""
        told = self.tells_inputs and any(each.mm_features for each in self.scheduler.running)
        if not (told and isinstance(self.scheduler, AsyncScheduler)):
            return 0
        before = request.num_in_flight_tokens - self.tokens.get(request.request_id, 0)
        assert before in {0, self.tokens_before.get(request.request_id, 0)}
        return int(before)

    def state(self) -> EngineState:
        """The scheduler's current state."""
        running = self.scheduler.running
        others = [each for each in self.scheduler.requests.values() if each not in running]
        return EngineState(
            [self.row(request) for request in running],
            {replace(self.row(request), cached_tokens=0) for request in others},
            self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        )

    def check(self, snapshot: EngineSnapshot) -> None:
        manager = self.scheduler.kv_cache_manager
        self.check_encoder_cache(snapshot.encoder_cache)
        expected_rows = [self.row(r) for r in self.scheduler.running]
        if not any(row.older_tokens for row in snapshot.running):
            # Where all requests decode, it follows without being published.
            assert all(row.older_tokens <= 1 for row in expected_rows)
            expected_rows = [replace(row, older_tokens=0) for row in expected_rows]
        assert list(snapshot.running) == expected_rows
        assert snapshot.free_blocks == manager.block_pool.get_num_free_blocks()
        by_id = {row.request_id: row for row in snapshot.waiting}
        running = {r.request_id for r in self.scheduler.running}
        expected = {i: self.row(r) for i, r in self.scheduler.requests.items() if i not in running}
        for request_id, row in expected.items():
            # A lookup that does not lead to admission is repeated later: hits are not published.
            assert replace(by_id[request_id], cached_tokens=0) == replace(row, cached_tokens=0)
        assert by_id.keys() == expected.keys()
