"""The cluster of a cluster file, as options of the simulator."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from foretell.config import Cluster, ClusterError, load_cluster
from foretell.config.cluster import ClusterEngine
from foretell.config.layout import engine_args, engine_profile
from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.tools.tune.options import MEMORY_UTILIZATION, Memory

Limits = Mapping[str, Sequence[int]]
"""What the command line gives of each limit, by its name."""
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG]?)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def with_cluster(
    options: SimulateOptions, path: str, profiles: list[str] | None, limits: Limits
) -> tuple[SimulateOptions, Memory]:
    """The options with the engines, the policy and the targets of a cluster file.

    A profile or a limit that is given stands for every engine's.
    ValueError that says what to add where the file does not say enough.
    """
    if len(profiles or ()) > 1 or any(len(values) > 1 for values in limits.values()):
        raise ValueError("with --cluster, --profile and limits are given once, for all engines")
    profile = (profiles or [""])[0]
    given = {name: values[0] for name, values in limits.items() if values}
    try:
        cluster = load_cluster(path)
    except ClusterError as error:
        raise ValueError(str(error)) from error
    engines = [(engine, _flags(engine_args(engine))) for engine in cluster.engine_list()]
    if len({engine.model_name for engine, _ in engines}) > 1:
        raise ValueError(f"{path} serves several models: tune each with a file of its own")
    if len({(flags.memory(), flags.shared()) for _, flags in engines}) > 1:
        raise ValueError(
            f"{path}: engines differ in memory, scheduling policy, watermark, prefix caching or "
            "async scheduling: tune those that are alike with a file of their own"
        )
    flags = engines[0][1]
    groups = [_group(path, engine, profile, {**own.limits(), **given}) for engine, own in engines]
    if flags.cache_dtype != "auto" and not all(group.num_blocks for group in groups):
        raise ValueError(
            f"{path}: KV blocks of a profile are of 16-bit keys and values: give --num-blocks, "
            "which vLLM logs at its start (tokens of the KV cache by the block size)"
        )
    options = replace(
        options,
        engines=tuple(replace(kind, instances=len(list(same))) for kind, same in groupby(groups)),
        scheduling_policy="priority" if flags.scheduling_policy == "priority" else "fcfs",
        watermark=flags.watermark,
        prefix_caching=flags.enable_prefix_caching,
        async_scheduling=flags.async_scheduling,
    )
    return _with_policy(options, cluster), flags.memory()


def _with_policy(options: SimulateOptions, cluster: Cluster) -> SimulateOptions:
    targets = cluster.targets
    return replace(
        options,
        policy=cluster.policy.name.removeprefix("baselines."),
        schedulers=cluster.schedulers.replicas,
        ttft_slo_s=options.ttft_slo_s or targets.ttft_target_ms / 1e3,
        tpot_slo_s=options.tpot_slo_s or targets.tpot_target_ms / 1e3,
        reject_late=options.reject_late or targets.late_requests == "reject",
    )


@dataclass(frozen=True, slots=True)
class _Flags:
    """What an engine's command line says of its scheduling; 0: nothing."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    max_model_len: int
    watermark: float
    scheduling_policy: str
    enable_prefix_caching: bool
    async_scheduling: bool
    utilization: float
    cache_dtype: str

    def limits(self) -> dict[str, int]:
        """The limits that an `EngineOptions` takes."""
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "max_model_len": self.max_model_len,
        }

    def memory(self) -> Memory:
        return Memory(self.utilization, self.cache_dtype)

    def shared(self) -> tuple[object, ...]:
        """What the simulator has once for all engines."""
        return (
            self.watermark,
            self.scheduling_policy,
            self.enable_prefix_caching,
            self.async_scheduling,
        )


def _flags(args: Sequence[str]) -> _Flags:
    """The flags of vLLM, or of an emulated engine, that the simulator knows."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--max-num-seqs", type=_number, default=0)
    parser.add_argument("--max-num-batched-tokens", type=_number, default=0)
    parser.add_argument(
        "--num-gpu-blocks-override", "--total-blocks", dest="num_blocks", type=_number, default=0
    )
    parser.add_argument("--block-size", type=_number, default=0)
    parser.add_argument("--max-model-len", type=_number, default=0)
    parser.add_argument("--watermark", type=float, default=0.0)
    parser.add_argument("--scheduling-policy", default="fcfs")
    for flag in ("--enable-prefix-caching", "--async-scheduling"):
        parser.add_argument(flag, default=True, action=argparse.BooleanOptionalAction)
    parser.add_argument(
        "--gpu-memory-utilization", dest="utilization", type=float, default=MEMORY_UTILIZATION
    )
    parser.add_argument("--kv-cache-dtype", dest="cache_dtype", default="auto")
    try:
        known, _ = parser.parse_known_args([_dashed(word) for word in args])
    except argparse.ArgumentError as error:
        raise ValueError(f"flags of an engine: {error}") from error
    return _Flags(**vars(known))


def _dashed(word: str) -> str:
    """vLLM takes underscores in the names of flags too."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _number(text: str) -> int:
    """A number as vLLM reads it: 16k is 16,000, 16K is 16,384; what vLLM finds itself is 0."""
    if text in ("auto", "-1"):
        return 0
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is no number")
    return int(float(found[1]) * _UNITS[found[2]])


def _group(
    path: str, engine: ClusterEngine, profile: str, limits: Mapping[str, int]
) -> EngineOptions:
    profile = profile or engine_profile(engine)
    if not profile:
        raise ValueError(
            f"{path}: {engine.name} has no GPU profile to simulate it by: give --profile, a "
            "shipped name or a file from `foretell profile measure`"
        )
    return EngineOptions(profile, 1, **limits)
