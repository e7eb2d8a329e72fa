"""What co-scheduling needs of vLLM; checked before it attaches."""

from typing import Any

from foretell.services.backend.vllm import compat

_ATTRIBUTES = (
    "_free_blocks",
    "_preempt_request",
    "kv_cache_manager.block_pool.get_cached_block",
    "kv_cache_manager.block_pool.get_num_free_blocks",
    "kv_cache_manager.coordinator.find_longest_cache_hit",
    "kv_cache_manager.coordinator.single_type_managers",
    "kv_cache_manager.enable_caching",
    "kv_cache_manager.watermark_blocks",
    "policy",
    "prev_step_scheduled_req_ids",
)


def refusal(scheduler: Any) -> str | None:
    """Why co-scheduling cannot attach to this scheduler, or None if it can."""
    reason = compat.refusal(scheduler)
    if reason:
        return reason
    missing = [name for name in _ATTRIBUTES if not compat.has(scheduler, name)]
    if missing:
        return "the scheduler has no " + ", ".join(missing)
    return next((reason for reason, true in _limits(scheduler).items() if true), None)


def _limits(scheduler: Any) -> dict[str, bool]:
    config = scheduler.vllm_config
    return {
        "it does not know KV connectors": bool(config.kv_transfer_config),
        "it does not know speculative decoding": bool(config.speculative_config),
        "it does not know pipeline parallelism": config.parallel_config.pipeline_parallel_size > 1,
        "it knows one group of KV caches only": len(scheduler.kv_cache_config.kv_cache_groups) != 1,
    }
