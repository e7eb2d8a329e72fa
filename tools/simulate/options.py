"""Options of a simulated cluster, as plain data that can be sent to other processes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PROFILE_TIMES_COUNT = re.compile(r"(.+)x(\d+)")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Some equal engines. A limit of 0 is the profile's."""

    profile: str
    instances: int
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    num_blocks: int = 0
    block_size: int = 0
    max_model_len: int = 0


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """A cluster and its requests, without their rate and seed."""

    trace: str
    trace_format: str
    engines: tuple[EngineOptions, ...]
    policy: str
    requests: int = 0
    cv: float = 1.0
    estimates: str = "true"
    length_rule: str = "survival"
    async_scheduling: bool = True
    prefix_caching: bool = True
    schedulers: int = 1
    candidates: int = 0
    publish_interval_s: float = 0.0
    dispatch_delay_s: float = 0.002
    tagger_delay_s: float = 0.0
    network_delay_s: float = 0.0
    faults: tuple[str, ...] = ()
    ttft_slo_s: float = 0.0
    """TTFT target of every request; 0: the trace's."""
    tpot_slo_s: float = 0.0
    reject_late: bool = False
    scheduling_policy: str = "fcfs"
    largest_last: float = 0.0

    @property
    def instances(self) -> int:
        """Number of engines of all kinds together."""
        return sum(engine.instances for engine in self.engines)


def parse_engines(
    profiles: Sequence[str], instances: int, limits: Mapping[str, Sequence[int]]
) -> tuple[EngineOptions, ...]:
    """One group of engines for each profile, `PROFILE` or `PROFILExCOUNT`, also `A,B`.

    Each of `limits` is given not at all, once for all groups, or once for each.
    """
    parts = [part for text in profiles for part in text.split(",") if part]
    groups = []
    for index, part in enumerate(parts):
        match = _PROFILE_TIMES_COUNT.fullmatch(part)
        if match is None and len(parts) > 1:
            raise ValueError(f"several profiles need counts, {part}xCOUNT")
        if match is not None and instances:
            raise ValueError("--instances goes with one profile without a count")
        name, count = (match[1], int(match[2])) if match else (part, instances or 1)
        if count < 1:
            raise ValueError(f"{part}: there must be at least one")
        chosen = {key: _of_group(key, values, index, len(parts)) for key, values in limits.items()}
        groups.append(EngineOptions(name, count, **chosen))
    return tuple(groups)


def _of_group(key: str, values: Sequence[int], index: int, groups: int) -> int:
    if not values:
        return 0
    if len(values) not in (1, groups):
        flag = "--" + key.replace("_", "-")
        raise ValueError(f"{flag} was given {len(values)} times for {groups} profiles")
    return values[index % len(values)]
