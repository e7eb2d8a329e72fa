"""Builds the installed vLLM's own scheduler, without weights, tokenizer or engine process.

`build_scheduler` constructs `Scheduler` or `AsyncScheduler` (or a subclass) over a generated
`config.json`.
"""

import copy
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from inspect import signature
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
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.structured_output import StructuredOutputManager

from foretell.model import EngineConfig, SchedulerRule
from foretell.services.backend.vllm.encoder import knows_encoding
from foretell.services.backend.vllm.rules import installed_rules

VOCABULARY = 32_000
_NEW_SETTINGS = ("max_num_active_seqs", "long_prefill_token_threshold_adaptive")  # since 0.31
_KNOWN_SETTINGS = {setting.name for setting in fields(SchedulerConfig)}
_WHEN_ALONE = {"long_prefill_threshold_when_alone": not _KNOWN_SETTINGS.issuperset(_NEW_SETTINGS)}
HASHES_AHEAD = hasattr(SpeculativeConfig, "disable_lookahead_block_hashes")
"""Since 0.33 the hash of a block covers the token after it, too, if EAGLE drafts."""
PASSES_OVER_IN_PLACE = _KNOWN_SETTINGS.issuperset(_NEW_SETTINGS)
"""Before 0.31 skipped requests went to a queue of their own, before all others."""
PUTS_OFF = "throttle_prefills" in signature(Scheduler.schedule).parameters
KNOWS_ENCODING = knows_encoding(Scheduler)
"""In other versions multimodal inputs are not modelled, which is reported."""

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
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
    """The configuration of a model with an encoder; the scheduler needs no real encoder."""

    supports_multimodal_inputs = True


@contextmanager
def _encoder_budget(config: EngineConfig) -> Iterator[None]:
    """Replace vLLM's encoder budget, which would ask the model's code about sizes of inputs."""
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
    # Since 0.31; passed on only if set, so that older versions work, too.
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
    """Drafts by n-grams, or by EAGLE if blocks are wanted for lookahead tokens."""
    result = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=config.num_speculative_tokens,
        target_model_config=model,
        target_parallel_config=ParallelConfig(),
    )
    if config.num_lookahead_tokens:
        # EAGLE's own configuration needs the files of its model; the scheduler reads only the name.
        assert config.num_lookahead_tokens == config.num_speculative_tokens
        result.method = "eagle"
        ahead = config.num_hash_lookahead_tokens > 0
        result.disable_eagle_block_drop = not (config.drops_last_hit or ahead)
        if HASHES_AHEAD:
            result.disable_lookahead_block_hashes = not ahead
    return result


def as_installed(scenario: dict[str, Any]) -> dict[str, Any]:
    """A scenario of the replay format, adapted to the installed vLLM.

    Settings that it does not know are left out; its differences from the newest vLLM are added.
    """
    config = {
        name: value
        for name, value in scenario["config"].items()
        if name not in _NEW_SETTINGS or name in _KNOWN_SETTINGS
    }
    if not HASHES_AHEAD and config.pop("num_hash_lookahead_tokens", 0):
        config["use_eagle_block_drop"] = True
    known = SchedulerRule.__members__.items()
    rules = [name.lower() for name, rule in known if rule & installed_rules()]
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
