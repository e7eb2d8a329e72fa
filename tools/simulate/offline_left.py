"""How much offline work a simulated cluster does beside its online requests."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, cycle
from typing import NamedTuple

from foretell.model import OFFLINE_PRIORITY
from foretell.sim.beside import FixedWindow, OfflineRun
from foretell.sim.config import ClusterConfig
from foretell.tools.simulate.cluster import cluster_config
from foretell.tools.simulate.options import SimulateOptions
from foretell.tools.simulate.run import fits, online_arrivals, read_trace
from foretell.workload import Arrival

_WAITING = 2
"""Offline requests that are kept in flight, as a multiple of `max_num_seqs`."""


class OfflineLeft(NamedTuple):
    """What online requests leave for offline ones."""

    tokens_per_s: float
    """Output tokens of offline requests that ended while online ones came, per second."""
    within: float
    """The ratio of online requests within their targets."""


def offline_left(options: SimulateOptions, qps: float, seed: int, offline: str) -> OfflineLeft:
    """What is left for offline requests with lengths as in the trace `offline`.

    There are always more offline requests. Engines co-schedule them and keep targets as
    `foretell.services.backend.vllm.cosched` does, but hold no blocks back for bursts. Online
    requests go to the engine with the fewest. Raises ValueError if a trace is wrong.
    """
    config = cluster_config(options, seed, prefixes=False)
    each = tuple(
        replace(one, engine=replace(one.engine, co_schedules=True)) for one in config.instances
    )
    config = replace(config, instances=each)
    online = [a for a in online_arrivals(options, qps, seed) if _fits(a, config)]
    lines = [a for a in read_trace(offline, "auto").requests if _fits(a, config)]
    if not online or not lines:
        raise ValueError("none of the requests fits into every engine")
    until_s = online[-1].t_s
    if until_s <= 0.0:
        raise ValueError("all requests come at once: that leaves no time for offline ones")
    windows = FixedWindow(_WAITING * sum(one.engine.max_num_seqs for one in each))
    found = OfflineRun(config, online, _endless(lines), windows).run(until_s)
    ends = zip(found.offline_ended_s, found.offline_tokens, strict=True)
    tokens = sum(tokens for at_s, tokens in ends if at_s <= until_s)
    return OfflineLeft(tokens / until_s, sum(found.within) / len(found.within))


def _fits(arrival: Arrival, config: ClusterConfig) -> bool:
    return fits(arrival, {one.engine for one in config.instances})


def _endless(lines: Sequence[Arrival]) -> Iterator[Arrival]:
    for number, line in zip(count(), cycle(lines), strict=False):
        yield Arrival(
            0.0,
            line.prompt_tokens,
            line.output_tokens,
            f"offline-{number}",
            priority=OFFLINE_PRIORITY,
        )
