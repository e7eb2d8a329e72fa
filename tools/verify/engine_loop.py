"""The engine loop around the installed vLLM's own scheduler.

`VerifiedLoop` steps it as `EngineCore.step` and `EngineCore.step_with_batch_queue` do
(vllm/v1/engine/core.py), with made-up sampled tokens.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from foretell.engine.arrays import new_rows
from foretell.engine.twin import Twin
from foretell.kernel import compiled as drafts
from foretell.model import EncoderInput, EngineConfig
from foretell.tools.verify.installed import VOCABULARY, build_scheduler

EOS_TOKEN = 1
_FIRST_OUTPUT_TOKEN = 10
_ASYNC_QUEUE_DEPTH = 2  # vLLM's max_concurrent_batches with async scheduling


class Drafting:
    """Draws how many tokens are drafted and accepted, as the twin does."""

    def __init__(
        self,
        config: EngineConfig,
        drafted_ratio: Sequence[float] = (),
        accepted_ratio: Sequence[float] = (),
    ) -> None:
        self._twin = Twin(config)
        self._twin.expect_drafts(drafted_ratio, accepted_ratio)

    def drafted(self, request: Request) -> int:
        return int(drafts.drafted_tokens(self._twin.engine, self._row(request)))

    def accepted(self, request: Request, count: int) -> int:
        return int(drafts.accepted_tokens(self._twin.engine, self._row(request), count))

    def _row(self, request: Request) -> Any:
        row = new_rows(1)[0]
        row["arrival_s"], row["prompt"] = request.arrival_time, request.num_prompt_tokens
        row["output"] = request.num_output_tokens
        return row


@dataclass(frozen=True)
class Iteration:
    """What one iteration of the engine loop did."""

    scheduled: dict[str, int] | None
    """{request: tokens} in scheduling order; None when `schedule()` was not called."""
    new: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    cached: dict[str, int] = field(default_factory=dict)
    """Prefix-cache tokens at admission, of new and resumed requests."""
    preempted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    free_blocks: int = 0


@dataclass(frozen=True)
class _Batch:
    output: SchedulerOutput
    tokens: dict[str, list[int]]


class _Grammar:
    """A grammar of structured output that accepts everything."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens


class VerifiedLoop:
    """A scheduler and the loop around it; `config.async_scheduling` decides which loop."""

    def __init__(self, config: EngineConfig, cls: type[Any] | None = None) -> None:
        self.config = config
        self.scheduler = build_scheduler(config, cls)
        self.depth = _ASYNC_QUEUE_DEPTH if config.async_scheduling else 1
        self._queue: deque[_Batch] = deque()
        self._step_counter = -1
        self.drafting = Drafting(config)
        self._eos_after: dict[str, int] = {}
        self._arrivals = count(1_000_000)
        hash_fn = get_hash_fn_by_name("sha256")
        init_none_hash(hash_fn)
        self._hasher = (
            get_request_block_hasher(config.block_size_tokens, hash_fn, *_hashed_ahead(config))
            if config.enable_prefix_caching
            else None
        )

    def add(
        self,
        request_id: str,
        prompt: int | Sequence[int],
        max_tokens: int,
        *,
        eos_after: int = 0,
        priority: int = 0,
        arrival_s: float | None = None,
        extra_args: dict[str, Any] | None = None,
        adapter: int = 0,
        awaits_grammar: bool = False,
        inputs: Sequence[tuple[str, EncoderInput]] = (),
    ) -> Request:
        """Queue a request.

        `adapter` is the number of its LoRA adapter. With `awaits_grammar` it waits for
        `compile_grammar`. `inputs` are its prompt's multimodal inputs, with their identifiers.

        `prompt` is token ids, or a length for a prompt that shares no prefix with any other.
        Output token number `eos_after` is EOS; 0: none is. Arrival times default to the order of
        calls.
        """
        if isinstance(prompt, int):
            prompt = unique_prompt(request_id, prompt)
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            extra_args=extra_args,
            structured_outputs=StructuredOutputsParams(regex="a*") if awaits_grammar else None,
        )
        params.update_from_generation_config({}, EOS_TOKEN)
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(next(self._arrivals)) if arrival_s is None else arrival_s,
            priority=priority,
            block_hasher=self._hasher,
            lora_request=LoRARequest(f"adapter {adapter}", adapter, "nowhere") if adapter else None,
            mm_features=[_feature(name, each) for name, each in inputs],
        )
        self._eos_after[request_id] = eos_after
        self.scheduler.add_request(request)
        return request

    def compile_grammar(self, request_id: str) -> None:
        """Provide the grammar for which a request waits."""
        request = self.scheduler.requests.get(request_id)
        if request is not None:
            request.structured_output_request.grammar = _Grammar()

    def abort(self, request_id: str) -> bool:
        """End a request from the client's side; false if it had already ended."""
        if request_id not in self.scheduler.requests:
            return False
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        return True

    @property
    def busy(self) -> bool:
        """Whether the engine would call `step` again."""
        return bool(self._queue) or self.scheduler.has_requests()

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def step(self) -> Iteration:
        """One iteration: schedule if there is room in the queue, then apply the oldest output."""
        facts: dict[str, Any] = {"scheduled": None}
        self._step_counter += 1
        if self.scheduler.has_requests():
            facts = self._schedule()
            ran = bool(facts["scheduled"])
            if len(self._queue) < self.depth and (ran or self.scheduler.has_requests()):
                return Iteration(**facts, free_blocks=self.free_blocks)
        if not self._queue:
            return Iteration(**facts, free_blocks=self.free_blocks)
        finished = self._update(self._queue.popleft())
        return Iteration(**facts, finished=finished, free_blocks=self.free_blocks)

    def run(self, limit: int = 100_000) -> list[Iteration]:
        """Step until nothing is left to do; fails after `limit` iterations."""
        result: list[Iteration] = []
        while self.busy:
            assert len(result) < limit, "the engine does not become idle"
            result.append(self.step())
        return result

    def close(self) -> None:
        """Release what the scheduler holds, including the plugin's socket and thread."""
        self.scheduler.shutdown()

    def _schedule(self) -> dict[str, Any]:
        running = [request.request_id for request in self.scheduler.running]
        preemptions = {rid: r.num_preemptions for rid, r in self.scheduler.requests.items()}
        interval = self.config.prefill_schedule_interval
        puts_off = interval > 1 and self._step_counter % interval != 0
        output = self.scheduler.schedule(puts_off) if interval > 1 else self.scheduler.schedule()
        self._queue.append(_Batch(output, self._sample(output)))
        resumed = list(output.scheduled_cached_reqs.resumed_req_ids)
        cached = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        columns = output.scheduled_cached_reqs
        for request_id, computed in zip(columns.req_ids, columns.num_computed_tokens, strict=True):
            if request_id in columns.resumed_req_ids:
                cached[request_id] = computed
        preempted = [rid for rid in running if self._preemptions(rid) > preemptions.get(rid, 0)]
        order = list(output.num_scheduled_tokens)
        return {
            "scheduled": dict(output.num_scheduled_tokens),
            "new": [r.req_id for r in output.scheduled_new_reqs],
            "resumed": sorted(resumed, key=order.index),
            "cached": cached,
            "preempted": self._preemption_order(preempted),
        }

    def _preemptions(self, request_id: str) -> int:
        return int(self.scheduler.requests[request_id].num_preemptions)

    def _preemption_order(self, preempted: list[str]) -> list[str]:
        """FCFS takes victims from the tail of running, the priority policy the worst first."""
        if self.config.policy == "fcfs":
            return preempted[::-1]
        requests = [self.scheduler.requests[rid] for rid in preempted]
        requests.sort(key=lambda r: (r.priority, r.arrival_time), reverse=True)
        return [r.request_id for r in requests]

    def _sample(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """A token for each scheduled request whose step reaches the end of what is known."""
        tokens: dict[str, list[int]] = {}
        for request_id in output.num_scheduled_tokens:
            request = self.scheduler.requests[request_id]
            if request.is_prefill_chunk:
                tokens[request_id] = []
                continue
            index = request.num_computed_tokens - request.num_prompt_tokens
            tokens[request_id] = [self._token(request_id, index)]
        return tokens

    def _accepted(self, request_id: str, output: SchedulerOutput) -> list[int]:
        """The accepted drafts of a step, and the token after them."""
        request = self.scheduler.requests.get(request_id)
        if request is None:
            return [_FIRST_OUTPUT_TOKEN]
        count = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
        first, accepted = request.num_output_tokens, self.drafting.accepted(request, count)
        return [self._token(request_id, first + i) for i in range(1 + accepted)]

    def _drafts(self, request_id: str) -> list[int]:
        request = self.scheduler.requests.get(request_id)
        return [] if request is None else [_FIRST_OUTPUT_TOKEN] * self.drafting.drafted(request)

    def _token(self, request_id: str, index: int) -> int:
        if index + 1 == self._eos_after[request_id]:
            return EOS_TOKEN
        return _FIRST_OUTPUT_TOKEN + index % 1000

    def sampled(self, batch: _Batch) -> ModelRunnerOutput:
        """The model's output for a step, including the drafts that it accepts."""
        ids = list(batch.output.num_scheduled_tokens)
        tokens = [batch.tokens[request_id] for request_id in ids]
        if self.config.num_speculative_tokens:
            tokens = [
                self._accepted(request_id, batch.output) if own else []
                for request_id, own in zip(ids, tokens, strict=True)
            ]
        index = {request_id: i for i, request_id in enumerate(ids)}
        return ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=tokens)

    def _update(self, batch: _Batch) -> list[str]:
        ids = list(batch.output.num_scheduled_tokens)
        before = set(self.scheduler.requests)
        self.scheduler.update_from_output(batch.output, self.sampled(batch))
        sampled = [request_id for request_id in ids if batch.tokens[request_id]]
        if self.config.num_speculative_tokens and not self.config.async_scheduling and ids:
            drafted = [self._drafts(request_id) for request_id in sampled]
            self.scheduler.update_draft_token_ids(DraftTokenIds(sampled, drafted))
        ended = before - set(self.scheduler.requests)
        return [request_id for request_id in ids if request_id in ended]


def _hashed_ahead(config: EngineConfig) -> tuple[int, ...]:
    """The lookahead argument; left out at 0, because not all versions have it."""
    return (config.num_hash_lookahead_tokens,) if config.num_hash_lookahead_tokens else ()


def _feature(identifier: str, shown: EncoderInput) -> MultiModalFeatureSpec:
    """An image whose tokens from the first to the last embedding are embeddings."""
    mask = None
    if shown.embeds < shown.length:
        mask = torch.zeros(shown.length, dtype=torch.bool)
        mask[shown.first_embed : shown.end_embed] = True
        assert shown.embeds == shown.end_embed - shown.first_embed
    place = PlaceholderRange(shown.offset, shown.length, mask)
    return MultiModalFeatureSpec(None, "image", identifier, place)


def unique_prompt(seed: str, tokens: int) -> list[int]:
    """`tokens` token ids that differ from any other seed's from the first block on."""
    state = int.from_bytes(seed.encode()[-7:], "big")
    result = []
    for _ in range(tokens):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        result.append(_FIRST_OUTPUT_TOKEN + (state >> 33) % (VOCABULARY - _FIRST_OUTPUT_TOKEN))
    return result
