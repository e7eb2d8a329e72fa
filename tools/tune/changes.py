"""The changes that are tried: vLLM's flags around what an engine has now, and how to place.

Only flags that vLLM 0.30 to 0.32 have, and only changes whose effect the simulator computes. What
cannot be computed is left out with its reason.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from foretell.latency.devices import DEVICES, MODELS
from foretell.model import EngineConfig, GpuProfile
from foretell.tools.profiles.imports import profile_of
from foretell.tools.profiles.sizes import known_device, known_model
from foretell.tools.simulate.cluster import instance_config
from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.tools.tune.options import Memory
from foretell.tools.tune.search import Change, Setup
from foretell.workload import Trace

FACTORS = (2.0, 4.0, 0.5)
"""On `max_num_seqs` and on `max_num_batched_tokens`."""
MORE_MEMORY_UTILIZATION = 0.95
WATERMARKS = (0.01, 0.05)
DEFAULT_POLICY = "slo"
STEP_TIMES_UNCHANGED = "the profile has no step times with FP8 keys and values: taken as unchanged"


@dataclass(frozen=True, slots=True)
class Proposals:
    """What is tried, and what is not."""

    changes: tuple[Change, ...]
    """Those with the least consequences first."""
    left_out: Mapping[str, str]
    """Why, by the names of flags."""


def propose(
    options: SimulateOptions, trace: Trace, memory: Memory, keep: frozenset[str]
) -> Proposals:
    """What to try with these engines and this trace; flags named by `keep` stay as they are.

    ValueError for a name in `keep` that no change has.
    """
    changes: list[Change] = []
    left_out: dict[str, str] = {}
    for kind, make in _KINDS.items():
        found = make(options, trace, memory)
        if kind in keep:
            left_out[kind] = "kept, as asked"
        elif isinstance(found, str):
            left_out[kind] = found
        else:
            changes += found
    if unknown := keep - set(_KINDS):
        known = ", ".join(_KINDS)
        raise ValueError(f"--keep {', '.join(sorted(unknown))}: the flags are {known}")
    return Proposals(tuple(changes), left_out)


def applied(options: SimulateOptions, setup: Setup) -> SimulateOptions:
    """The options with all changes of a setup."""
    for change in setup:
        options = change.apply(options)
    return options


def starts(options: SimulateOptions) -> bool:
    """Whether vLLM would start so: a step has room for a token of every sequence."""
    configs = configs_of(options)
    return all(c.max_num_scheduled_tokens >= c.max_num_seqs for c in configs)


def configs_of(options: SimulateOptions) -> list[EngineConfig]:
    """The configuration of each group of engines."""
    return [instance_config(engine, options).engine for engine in options.engines]


_Found = list[Change] | str
"""Changes of one kind, or why there are none."""


def _watermark(options: SimulateOptions, trace: Trace, memory: Memory) -> _Found:
    values = [value for value in WATERMARKS if value != options.watermark]
    return [
        Change(
            "watermark",
            lambda options, value=value: replace(options, watermark=value),  # type: ignore[misc]
            _for_all(options, f"--watermark {value:g}"),
        )
        for value in values
    ]


def _max_num_seqs(options: SimulateOptions, trace: Trace, memory: Memory) -> _Found:
    return list(_scaled(options, "max_num_seqs", lambda config: config.max_num_seqs))


def _max_num_batched_tokens(options: SimulateOptions, trace: Trace, memory: Memory) -> _Found:
    name = "max_num_batched_tokens"
    return list(_scaled(options, name, lambda config: config.max_num_scheduled_tokens))


def _scaled(
    options: SimulateOptions, name: str, now: Callable[[EngineConfig], int]
) -> Iterator[Change]:
    """Every group's limit, times each of `FACTORS`."""
    limits = [now(config) for config in configs_of(options)]
    flag = name.replace("_", "-")
    for factor in FACTORS:
        wanted = [max(1, int(limit * factor)) for limit in limits]
        change = Change(
            flag,
            lambda options, wanted=wanted: _with_limits(options, name, wanted),  # type: ignore[misc]
            tuple(f"--{flag} {value}" for value in wanted),
            note=_beyond(options, wanted, name) if factor > 1 else "",
        )
        if starts(change.apply(options)):
            yield change


def _beyond(options: SimulateOptions, wanted: list[int], name: str) -> str:
    """What is not known of larger batches."""
    said = ["larger batches take memory from the KV cache: blocks are taken as unchanged"]
    for engine, value in zip(options.engines, wanted, strict=True):
        tables = profile_of(engine.profile).tables
        if tables is not None:
            curve = tables.sequences if name == "max_num_seqs" else tables.tokens
            if value > curve.x[-1]:
                said.append(f"{engine.profile} was measured up to {curve.x[-1]:g}: extrapolated")
    return "; ".join(said)


def _memory_utilization(options: SimulateOptions, trace: Trace, memory: Memory) -> _Found:
    more = MORE_MEMORY_UTILIZATION - memory.utilization
    if more <= 0:
        return f"it is {memory.utilization:g} already"
    half = 2 if memory.cache_dtype.startswith("fp8") else 1
    blocks = []
    for engine, config in zip(options.engines, configs_of(options), strict=True):
        profile = profile_of(engine.profile)
        block_bytes = _block_bytes(profile, config.block_size_tokens)
        if not block_bytes:
            return f"the sizes of the device and the model of {profile.name} are not known"
        added = int(more * _device_bytes(profile) / (block_bytes / half))
        blocks.append(1 + added / config.total_blocks)
    return [
        Change(
            "gpu-memory-utilization",
            lambda options: _with_blocks(options, blocks),
            _for_all(options, f"--gpu-memory-utilization {MORE_MEMORY_UTILIZATION:g}"),
            note="less room for what else uses the GPU; vLLM refuses to start if it is too little",
        )
    ]


def _cache_dtype(options: SimulateOptions, trace: Trace, memory: Memory) -> _Found:
    if memory.cache_dtype != "auto":
        return f"it is {memory.cache_dtype} already"
    return [
        Change(
            "kv-cache-dtype",
            lambda options: _with_blocks(options, [2.0] * len(options.engines)),
            _for_all(options, "--kv-cache-dtype fp8"),
            note="answers change a little: compare them with yours, and check that the GPU's "
            f"attention kernels support it; {STEP_TIMES_UNCHANGED}",
        )
    ]


def _prefix_caching(options: SimulateOptions, trace: Trace, memory: Memory) -> _Found:
    if options.prefix_caching:
        return "it is on already"
    if not any(request.prefix for request in trace.requests):
        return "the trace does not name its prompts' blocks"
    return [
        Change(
            "enable-prefix-caching",
            lambda options: replace(options, prefix_caching=True),
            _for_all(options, "--enable-prefix-caching"),
        )
    ]


def _priority(options: SimulateOptions, trace: Trace, memory: Memory) -> _Found:
    """Where it pays, the largest go last; requests' own priorities count from then on too."""
    if options.scheduling_policy == "priority":
        return "it is priority already"
    return [
        Change(
            "scheduling-policy",
            lambda options: replace(options, scheduling_policy="priority"),
            _for_all(options, "--scheduling-policy priority"),
        )
    ]


def _policy(options: SimulateOptions, trace: Trace, memory: Memory) -> _Found:
    if options.policy == DEFAULT_POLICY:
        return f"it is {DEFAULT_POLICY} already, which knows what engines have cached"
    return [
        Change(
            "policy",
            lambda options: replace(options, policy=DEFAULT_POLICY),
            (),
            {"policy.name": DEFAULT_POLICY},
        )
    ]


_KINDS: Mapping[str, Callable[[SimulateOptions, Trace, Memory], _Found]] = {
    "policy": _policy,
    "enable-prefix-caching": _prefix_caching,
    "watermark": _watermark,
    "max-num-seqs": _max_num_seqs,
    "max-num-batched-tokens": _max_num_batched_tokens,
    "scheduling-policy": _priority,
    "gpu-memory-utilization": _memory_utilization,
    "kv-cache-dtype": _cache_dtype,
}
"""Those with the least consequences first."""


def _for_all(options: SimulateOptions, flag: str) -> tuple[str, ...]:
    return (flag,) * len(options.engines)


def _with_limits(options: SimulateOptions, name: str, values: list[int]) -> SimulateOptions:
    pairs = zip(options.engines, values, strict=True)
    engines = tuple(_with(engine, name, value) for engine, value in pairs)
    return replace(options, engines=engines)


def _with_blocks(options: SimulateOptions, factors: list[float]) -> SimulateOptions:
    """Every group's KV blocks times its factor."""
    blocks = [int(c.total_blocks * f) for c, f in zip(configs_of(options), factors, strict=True)]
    return _with_limits(options, "num_blocks", blocks)


def _with(engine: EngineOptions, name: str, value: int) -> EngineOptions:
    return replace(engine, **{name: value})  # type: ignore[arg-type]


def _block_bytes(profile: GpuProfile, block_size_tokens: int) -> float:
    """Bytes of a KV block of 16-bit keys and values, over all GPUs of an engine; 0: not known."""
    name = known_model(profile.name.split("/"))
    if not name or not known_device(profile.name.split("/")):
        return 0.0
    return MODELS[name].kv_block_bytes_per_token * block_size_tokens


def _device_bytes(profile: GpuProfile) -> float:
    """Bytes of memory of all GPUs of an engine."""
    device = DEVICES[known_device(profile.name.split("/"))]
    return device.memory_bytes * profile.tensor_parallel
