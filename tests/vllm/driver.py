"""Drives vLLM's real scheduler without weights, tokenizer or engine process.

`build_scheduler` constructs `Scheduler` or `AsyncScheduler` (or a subclass) over a generated
`config.json`; `EngineLoop` steps it as `EngineCore.step` and `EngineCore.step_with_batch_queue`
do (vllm/v1/engine/core.py), with made-up sampled tokens.
"""

import copy
import json
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from foretell.engine.arrays import new_rows
from foretell.engine.twin import Twin
from foretell.kernel import compiled as drafts
from foretell.model import EncoderInput, EngineConfig, SchedulerRule
from foretell.services.backend.vllm.encoder import knows_encoding
from foretell.services.backend.vllm.rules import installed_rules

EOS_TOKEN = 1
_FIRST_OUTPUT_TOKEN = 10
_VOCABULARY = 32_000
_NEW_SETTINGS = ("max_num_active_seqs", "long_prefill_token_threshold_adaptive")  # since 0.31
_KNOWN_SETTINGS = {setting.name for setting in fields(SchedulerConfig)}
_WHEN_ALONE = {"long_prefill_threshold_when_alone": not _KNOWN_SETTINGS.issuperset(_NEW_SETTINGS)}
HASHES_AHEAD = hasattr(SpeculativeConfig, "disable_lookahead_block_hashes")
"""Since 0.33 the hash of a block covers the token behind it where EAGLE drafts."""
PASSES_OVER_IN_PLACE = _KNOWN_SETTINGS.issuperset(_NEW_SETTINGS)
"""Before 0.31 who was passed over went to a queue of its own, before all others."""
KNOWS_ENCODING = knows_encoding(Scheduler)
"""Of other versions it is told that multimodal inputs are not modelled."""
_ASYNC_QUEUE_DEPTH = 2  # vLLM's max_concurrent_batches with async scheduling

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": _VOCABULARY,
    "torch_dtype": "float32",
}


def engine_config(**changes: Any) -> EngineConfig:
    """A small engine of the installed vLLM: 16-token blocks, sync, FCFS; `changes` by field."""
    values: dict[str, Any] = {
        "model_name": "tiny",
        "block_size_tokens": 16,
        "total_blocks": 1000,
        "max_num_seqs": 16,
        "max_num_scheduled_tokens": 256,
        "max_model_len": 1024,
    }
    return EngineConfig(**(values | _WHEN_ALONE | {"rules": installed_rules()} | changes))


@cache
def _model_config(name: str, max_model_len: int) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(_MODEL | {"max_position_embeddings": max_model_len})
        (Path(folder) / "config.json").write_text(text)
        return ModelConfig(
            model=folder,
            served_model_name=name,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=max_model_len,
            seed=0,
            enforce_eager=True,
        )


class _MultimodalConfig(ModelConfig):  # type: ignore[misc]
    """That of a model with an encoder, which for the scheduler need not be one."""

    supports_multimodal_inputs = True


@contextmanager
def _encoder_budget(config: EngineConfig) -> Iterator[None]:
    """vLLM asks the model's own code how many embeddings an input may have; here nobody does."""
    budget = SimpleNamespace(
        encoder_compute_budget=config.max_num_encoder_input_tokens,
        encoder_cache_size=config.encoder_cache_size,
        mm_max_toks_per_item={},
    )
    with patch("vllm.v1.core.sched.scheduler.MultiModalBudget", lambda *_, **__: budget):
        yield


def vllm_config(config: EngineConfig) -> VllmConfig:
    """The `VllmConfig` that makes vLLM's scheduler behave as `config` says."""
    model = copy.copy(_model_config(config.model_name, config.max_model_len))
    if config.max_num_encoder_input_tokens:
        model.__class__ = _MultimodalConfig
    # Since 0.31; an older version need not know them unless it is asked for them.
    newer = {
        "max_num_active_seqs": config.max_num_active_seqs or None,
        "long_prefill_token_threshold_adaptive": config.long_prefill_token_threshold_adaptive
        or None,
    }
    scheduler = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or config.max_num_scheduled_tokens,
        max_num_scheduled_tokens=config.max_num_scheduled_tokens,
        max_model_len=config.max_model_len,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        policy=config.policy,
        is_encoder_decoder=False,
        watermark=config.watermark_ratio,
        scheduler_reserve_full_isl=config.reserve_full_isl,
        disable_chunked_mm_input=config.disable_chunked_mm_input,
        **{name: value for name, value in newer.items() if value is not None},
    )
    result = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(
            block_size=config.block_size_tokens,
            enable_prefix_caching=config.enable_prefix_caching,
        ),
        parallel_config=ParallelConfig(),
        scheduler_config=scheduler,
        device_config=DeviceConfig("cpu"),
    )
    # The CPU platform forces async scheduling off; the scheduler itself has no such limit.
    result.scheduler_config.async_scheduling = config.async_scheduling
    result.cache_config.num_gpu_blocks = config.total_blocks + 1
    if config.num_speculative_tokens:
        result.speculative_config = _speculative_config(config, model)
    if config.max_loras:
        result.lora_config = LoRAConfig(max_loras=config.max_loras)
    return result


def _speculative_config(config: EngineConfig, model: ModelConfig) -> SpeculativeConfig:
    """Drafts by n-grams, or where blocks are wanted for what a model looks ahead, by EAGLE's."""
    result = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=config.num_speculative_tokens,
        target_model_config=model,
        target_parallel_config=ParallelConfig(),
    )
    if config.num_lookahead_tokens:
        # That of EAGLE asks for the files of its model; the scheduler looks only at its name.
        assert config.num_lookahead_tokens == config.num_speculative_tokens
        result.method = "eagle"
        ahead = config.num_hash_lookahead_tokens > 0
        result.disable_eagle_block_drop = not (config.drops_last_hit or ahead)
        if HASHES_AHEAD:
            result.disable_lookahead_block_hashes = not ahead
    return result


def as_installed(scenario: dict[str, Any]) -> dict[str, Any]:
    """A scenario of the replay format as the installed vLLM can have it.

    Settings that it does not know are left out; what it does otherwise than the newest is said.
    """
    config = {
        name: value
        for name, value in scenario["config"].items()
        if name not in _NEW_SETTINGS or name in _KNOWN_SETTINGS
    }
    if not HASHES_AHEAD and config.pop("num_hash_lookahead_tokens", 0):
        config["use_eagle_block_drop"] = True
    rules = [rule.name.lower() for rule in SchedulerRule if rule & installed_rules()]
    return scenario | {"config": config | _WHEN_ALONE | {"rules": rules}}


def build_scheduler(config: EngineConfig, cls: type[Any] | None = None) -> Scheduler:
    """vLLM's scheduler for `config`: `cls`, or the stock class vLLM would choose."""
    if cls is None:
        cls = AsyncScheduler if config.async_scheduling else Scheduler
    settings = vllm_config(config)
    with _encoder_budget(config):
        scheduler: Scheduler = cls(
            vllm_config=settings,
            kv_cache_config=KVCacheConfig(
                num_blocks=config.total_blocks + 1,  # block 0 is the null block
                kv_cache_tensors=[],
                kv_cache_groups=kv_cache_groups(config),
            ),
            structured_output_manager=StructuredOutputManager(settings),
            block_size=config.block_size_tokens,
            log_stats=False,
        )
    return scheduler


def kv_cache_groups(config: EngineConfig) -> list[KVCacheGroupSpec]:
    """Groups of one layer each; those of local attention come last."""
    common = {
        "block_size": config.block_size_tokens,
        "num_kv_heads": 1,
        "head_size": 64,
        "dtype": torch.float32,
    }
    local = config.local_kv_cache_groups
    specs = [FullAttentionSpec(**common)] * (config.kv_cache_groups - local)
    if config.attention_chunk_tokens:
        chunk = config.attention_chunk_tokens
        specs += [ChunkedLocalAttentionSpec(**common, attention_chunk_size=chunk)] * local
    else:
        window = config.sliding_window_tokens
        specs += [SlidingWindowSpec(**common, sliding_window=window) for _ in range(local)]
    return [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]


class Drafting:
    """How many tokens are drafted and accepted: as the twin draws them."""

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
    """Of structured output: it lets everything pass."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens


class EngineLoop:
    """A scheduler and the loop around it; `config.async_scheduling` decides which loop."""

    def __init__(self, config: EngineConfig, cls: type[Any] | None = None) -> None:
        self.config = config
        self.scheduler = build_scheduler(config, cls)
        self.depth = _ASYNC_QUEUE_DEPTH if config.async_scheduling else 1
        self._queue: deque[_Batch] = deque()
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

        `adapter` is the number of its LoRA adapter; `awaits_grammar` until `compile_grammar`.
        `inputs` are the multimodal ones of its prompt, with their identifiers.

        `prompt` is token ids, or a length for a prompt that shares no prefix with any other.
        `eos_after` output tokens EOS is sampled; 0 never. Arrival times default to the order of
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
        """The grammar for which a request waits is there."""
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
            assert len(result) < limit, "the engine does not come to rest"
            result.append(self.step())
        return result

    def close(self) -> None:
        """Release what the scheduler holds, the plugin's socket and thread included."""
        self.scheduler.shutdown()

    def _schedule(self) -> dict[str, Any]:
        running = [request.request_id for request in self.scheduler.running]
        preemptions = {rid: r.num_preemptions for rid, r in self.scheduler.requests.items()}
        output = self.scheduler.schedule()
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
        """The drafts of a step that are accepted, and the token behind them."""
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
        """What the model gives for a step: all tokens of the drafts that it accepts, too."""
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
    """The argument that versions without it need not have."""
    return (config.num_hash_lookahead_tokens,) if config.num_hash_lookahead_tokens else ()


def _feature(identifier: str, told: EncoderInput) -> MultiModalFeatureSpec:
    """The tokens of an image, of which those from the first embedding to the last are such."""
    mask = None
    if told.embeds < told.length:
        mask = torch.zeros(told.length, dtype=torch.bool)
        mask[told.first_embed : told.end_embed] = True
        assert told.embeds == told.end_embed - told.first_embed
    place = PlaceholderRange(told.offset, told.length, mask)
    return MultiModalFeatureSpec(None, "image", identifier, place)


def unique_prompt(seed: str, tokens: int) -> list[int]:
    """`tokens` token ids that differ from any other seed's from the first block on."""
    state = int.from_bytes(seed.encode()[-7:], "big")
    result = []
    for _ in range(tokens):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        result.append(_FIRST_OUTPUT_TOKEN + (state >> 33) % (_VOCABULARY - _FIRST_OUTPUT_TOKEN))
    return result
