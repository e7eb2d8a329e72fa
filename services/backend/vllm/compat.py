"""What the plugin needs of vLLM, and where its versions differ. Checked before it attaches.

vLLM's scheduler is not a public interface. Everything the plugin reads from it is named here, so
that a version that moves something is refused with the name of what moved.
"""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import vllm
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.request import Request

from foretell.cosched.deadlines import OFFLINE_APART
from foretell.model import EngineConfig
from foretell.services.backend import verified
from foretell.services.backend.vllm import encoder, kv_groups, ranks, speculation
from foretell.services.backend.vllm.rules import installed_rules
from foretell.wire import LONGEST_APPROXIMATION, MOST_APPROXIMATIONS

OLDEST = (0, 30)
NEWEST = (0, 33)

_SCHEDULER_ATTRIBUTES = (
    "block_size",
    "cache_config.enable_prefix_caching",
    "kv_cache_config.kv_cache_groups",
    "kv_cache_manager.block_pool.get_num_free_blocks",
    "kv_cache_manager.block_pool.num_gpu_blocks",
    "kv_cache_manager.coordinator.single_type_managers",
    "max_model_len",
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "requests",
    "num_lookahead_tokens",
    "num_spec_tokens",
    "running",
    "scheduler_config.async_scheduling",
    "scheduler_config.enable_chunked_prefill",
    "scheduler_config.long_prefill_token_threshold",
    "scheduler_config.max_num_batched_tokens",
    "scheduler_config.policy",
    "scheduler_config.scheduler_reserve_full_isl",
    "scheduler_config.watermark",
    "use_eagle_block_drop",
    "vllm_config.lora_config",
    "vllm_config.model_config.runner_type",
    "vllm_config.model_config.served_model_name",
    "vllm_config.parallel_config.data_parallel_size",
    "vllm_config.speculative_config",
    "waiting",
)
_REQUEST_ATTRIBUTES = (
    "_output_token_ids",
    "arrival_time",
    "lora_request",
    "max_tokens",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_output_tokens",
    "num_preemptions",
    "num_prompt_tokens",
    "priority",
    "request_id",
    "sampling_params",
    "status",
)
_OUTPUT_FIELDS = {
    SchedulerOutput: (
        "finished_req_ids",
        "num_scheduled_tokens",
        "scheduled_cached_reqs",
        "scheduled_new_reqs",
        "scheduled_spec_decode_tokens",
        "total_num_scheduled_tokens",
    ),
    NewRequestData: ("num_computed_tokens", "req_id"),
    CachedRequestData: ("num_computed_tokens", "req_ids", "resumed_req_ids"),
}

_OPTIONAL = {
    "diffusion_config": "diffusion",
    "ec_transfer_config": "an encoder cache connector",
    "kv_transfer_config": "a KV connector",
    "lora_config": "which LoRA adapter a new request asks for",
}
# Parts of vLLM's configuration that do not change what its scheduler decides, or whose effects the
# twin models.
_HARMLESS = {
    "attention_config",
    "aux_output_config",
    "cache_config",
    "compilation_config",
    "device_config",
    "ec_manager_config",
    "kernel_config",
    "kv_events_config",
    "load_config",
    "logging_config",
    "mamba_config",
    "model_config",
    "observability_config",
    "offload_config",
    "parallel_config",
    "profiler_config",
    "quant_config",
    "reasoning_config",
    "scheduler_config",
    "speculative_config",
    "structured_outputs_config",
    "watchdog_config",
    "watermark_config",
    "weight_transfer_config",
}


def version() -> str:
    """The version of the vLLM this process runs."""
    return str(vllm.__version__)


def release() -> tuple[int, ...]:
    """The first two numbers of vLLM's version; (0, 0) if they cannot be read."""
    match = re.match(r"(\d+)\.(\d+)", version())
    return tuple(int(part) for part in match.groups()) if match else (0, 0)


def refusal(scheduler: Any) -> str | None:
    """Why the plugin cannot describe this scheduler, or None when it can."""
    if release() < OLDEST:
        return "supported are {}.{} to {}.{}, and later ones that are verified".format(
            *OLDEST, *NEWEST
        )
    missing = _missing(scheduler)
    if missing:
        return "it has no " + ", ".join(missing)
    config = scheduler.vllm_config
    if config.model_config.runner_type == "pooling":
        return "a pooling model generates nothing to predict"
    if not scheduler.kv_cache_config.kv_cache_groups:
        return "the model has no KV cache"
    return None


def unverified(config: EngineConfig) -> str | None:
    """Why this vLLM, if newer than all known ones, is not known to match the twin; else None."""
    if release() <= NEWEST:
        return None
    key = verified.installation(Path(vllm.__file__).parent, version())
    verdicts = verified.verdicts_of(key, verified.kept_in())
    if verdicts is None:
        newest = ".".join(map(str, NEWEST))
        return f"it is newer than {newest}: run `foretell verify-engine` with its Python"
    different = verified.differs(verdicts, config)
    return f"verify-engine found it different: {', '.join(different)}" if different else None


def approximations(scheduler: Any) -> list[str]:
    """What this engine does that the twin does not model: predictions will be less exact.

    The twin is known to match what is not listed. Any other feature, also of a future vLLM, is
    listed, under vLLM's own name if there is no better one.
    """
    config, settings = scheduler.vllm_config, scheduler.scheduler_config
    parallel = config.parallel_config
    ways = ("pipeline", "decode_context", "prefill_context")
    in_use = {
        OFFLINE_APART: knows_offline(scheduler),
        # Measured step times are those of the slowest rank only.
        "a rank's own share of steps": bool(ranks.steps_with(scheduler)),
        "prefill_schedule_interval": getattr(settings, "prefill_schedule_interval", 1) > 1
        and not ranks.prefill_schedule_interval(scheduler),
        **{
            f"{way.replace('_', ' ')} parallelism": getattr(parallel, f"{way}_parallel_size", 1) > 1
            for way in ways
        },
    }
    optional = [
        _OPTIONAL.get(name, name)
        for name, value in vars(config).items()
        if name.endswith("_config") and value and name not in _HARMLESS
    ]
    return (
        kv_groups.not_modelled(scheduler)
        + speculation.not_modelled(scheduler)
        + encoder.not_modelled(scheduler)
        + sorted(optional)
        + [name for name, used in in_use.items() if used]
    )


def engine_config(scheduler: Any) -> EngineConfig:
    """The scheduler's configuration in the library's terms."""
    settings, config = scheduler.scheduler_config, scheduler.vllm_config
    served = config.model_config.served_model_name
    max_num_seqs = scheduler.max_num_running_reqs
    active = getattr(scheduler, "max_num_active_reqs", max_num_seqs)  # since 0.31
    adaptive = getattr(settings, "long_prefill_token_threshold_adaptive", False)  # since 0.31
    budget, batched = scheduler.max_num_scheduled_tokens, settings.max_num_batched_tokens
    return EngineConfig(
        model_name=served if isinstance(served, str) else served[0],
        block_size_tokens=scheduler.block_size,
        total_blocks=scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,
        max_num_seqs=max_num_seqs,
        max_num_active_seqs=0 if active == max_num_seqs else active,
        max_num_scheduled_tokens=min(budget, batched),
        max_num_batched_tokens=0 if batched == budget else batched,
        max_model_len=scheduler.max_model_len,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=bool(adaptive),
        long_prefill_threshold_when_alone=threshold_binds_lone_requests(settings),
        policy=str(settings.policy),
        co_schedules=knows_offline(scheduler),
        enable_prefix_caching=bool(scheduler.cache_config.enable_prefix_caching),
        enable_chunked_prefill=bool(settings.enable_chunked_prefill),
        async_scheduling=bool(settings.async_scheduling),
        watermark_ratio=settings.watermark,
        reserve_full_isl=bool(settings.scheduler_reserve_full_isl),
        engine_version=f"vllm {version()}",
        max_loras=getattr(config.lora_config, "max_loras", 0),
        rules=installed_rules(),
        steps_with=ranks.steps_with(scheduler),
        prefill_schedule_interval=ranks.prefill_schedule_interval(scheduler),
        **kv_groups.described(scheduler),
        **speculation.described(scheduler),
        **encoder.described(scheduler),
        approximations=tuple(
            each[:LONGEST_APPROXIMATION] for each in approximations(scheduler)[:MOST_APPROXIMATIONS]
        ),
    )


def knows_offline(scheduler: Any) -> bool:
    """Whether the scheduler plans offline requests (`foretell.services.backend.vllm.cosched`)."""
    return getattr(scheduler, "planner", None) is not None


def threshold_binds_lone_requests(settings: Any) -> bool:
    """Whether `long_prefill_token_threshold` also limits a request that runs alone.

    It does before 0.31, which is recognised by the lack of the adaptive threshold.
    """
    return not hasattr(settings, "long_prefill_token_threshold_adaptive")


def waiting_reader(scheduler: Any) -> Callable[[], list[Any]]:
    """Return a function that lists waiting requests in the order of their admission.

    Under FCFS every version drains a queue of set-aside requests before `waiting`. Under the
    priority policy 0.30 takes the better head of `skipped_waiting` and `waiting`, which sorts them
    together; from 0.31 on `kv_holding_waiting` is drained first.
    """
    # A co-scheduling scheduler's own queue iterates in order, with offline requests last.
    by_priority = scheduler.scheduler_config.policy == "priority" and not knows_offline(scheduler)
    apart = hasattr(scheduler, "kv_holding_waiting")
    ahead = "kv_holding_waiting" if apart else "skipped_waiting"

    def fcfs() -> list[Any]:
        return [*getattr(scheduler, ahead, ()), *scheduler.waiting]

    def priority() -> list[Any]:
        first, rest = _unordered(getattr(scheduler, ahead, ())), _unordered(scheduler.waiting)
        if apart:
            return sorted(first, key=_admission_key) + sorted(rest, key=_admission_key)
        return sorted([*first, *rest], key=_admission_key)

    return priority if by_priority else fcfs


def _unordered(queue: Any) -> list[Any]:
    """The requests of a priority queue, unsorted: its iterator would pop each of them."""
    heap = getattr(queue, "_heap", None)
    return list(queue) if heap is None else heap


def _admission_key(request: Any) -> tuple[int, float, str]:
    return request.priority, request.arrival_time, request.request_id  # as Request.__lt__


def _missing(scheduler: Any) -> list[str]:
    result = [f"scheduler.{path}" for path in _SCHEDULER_ATTRIBUTES if not has(scheduler, path)]
    for cls, names in _OUTPUT_FIELDS.items():
        known = {f.name for f in fields(cls)}
        result += [f"{cls.__name__}.{name}" for name in names if name not in known]
    # Most of a request's attributes exist only on an instance.
    probe = Request("foretell-probe", [0], SamplingParams(max_tokens=1), None)
    return result + [f"Request.{name}" for name in _REQUEST_ATTRIBUTES if not has(probe, name)]


def has(root: Any, path: str) -> bool:
    """Whether `root` has all attributes of a dotted path."""
    for name in path.split("."):
        if not hasattr(root, name):
            return False
        root = getattr(root, name)
    return True
