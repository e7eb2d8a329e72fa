"""Runs of clusters whose engines are one (`pooled`), and of clusters far too busy."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from bench.placement.block import policies
from bench.placement.block.pooled import alone_s, pooled_instance
from bench.placement.block.runs import Result, arrivals_for
from bench.placement.block.settings import Case
from foretell.sim import ClusterConfig, Report, Served, simulate
from foretell.workload import Arrival
from tools.simulate.cluster import cluster_config, estimator
from tools.simulate.run import fits, read_trace

_HERE = Path(__file__).parent
_CODE = hashlib.sha256(
    b"".join((_HERE / name).read_bytes() for name in ("bound.py", "pooled.py"))
).hexdigest()[:16]
_FOREVER_S = 1e6
P99 = 0.99
FIRST, LAST = 0.4, 0.9
"""Throughput counts between the first tokens of the requests at these shares of all."""


@dataclass(frozen=True, slots=True)
class Pool:
    """How the engines of a cluster are made one."""

    convex: bool = True
    """Steps take what `pooled.convex_step_time` says."""
    memory: float = 1.0
    """KV blocks, times those that all engines have."""


@dataclass(frozen=True, slots=True)
class BoundCase(Case):
    """One run; without a pool the cluster is as in `bench.placement.beyond_block`."""

    pool: Pool | None = None
    order: str = "fcfs"
    """In which engines serve: a key of `ORDERS`."""

    def key(self) -> dict[str, Any]:
        """All that decides what comes of it, but for the code that `runs.Results` knows of."""
        pool = asdict(self.pool) if self.pool else None
        return {**Case.key(self), "pool": pool, "order": self.order, "code": _CODE}

    def key_of_requests(self) -> str:
        """Equal for runs that differ in their rate alone."""
        return json.dumps({**self.key(), "qps": 0.0}, sort_keys=True)


def run(case: BoundCase, traces: str) -> Result:
    """What comes of one case, as JSON; equal cases give equal results."""
    config, arrivals = cluster_of(case, traces)
    one, engines = config.instances[0], len(config.instances)
    if case.pool is not None:
        instance = pooled_instance(one, engines, convex=case.pool.convex)
        blocks = round(case.pool.memory * instance.engine.total_blocks)
        instance = replace(instance, engine=replace(instance.engine, total_blocks=blocks))
        config = replace(config, instances=(instance,))
    arrivals = ordered(case, arrivals)
    policy = policies.make(case.scheduler.policy)
    report = simulate(config, arrivals, [policy], Random(f"{case.seed} cluster"))
    budget = one.engine.max_num_scheduled_tokens

    def ttft_s(served: Served) -> float:
        """No sooner than the request would have it of an idle engine to itself."""
        alone = alone_s(one.step_time, served.prompt_tokens, served.cached_tokens, budget)
        return max(served.ttft_s, alone + config.dispatch_delay_s)

    return {**_latencies(report, ttft_s), **throughput(report.served), **_recomputed(report)}


def cluster_of(case: BoundCase, traces: str) -> tuple[ClusterConfig, list[Arrival]]:
    """The cluster before its engines are made one, and the requests that fit into each engine."""
    options = case.options(traces)
    if case.order != "fcfs":
        options = replace(options, scheduling_policy="priority")
    arrivals = arrivals_for(case, read_trace(options.trace, options.trace_format))
    prefixes = any(arrival.prefix for arrival in arrivals)
    config = cluster_config(options, case.seed, prefixes=prefixes)
    # Where nobody is sent on before there is room, nobody is for having waited long.
    placement = replace(config.placement, hold_max_s=_FOREVER_S)
    config = replace(config, predict_hits=case.scheduler.knows_prefixes, placement=placement)
    engines = {instance.engine for instance in config.instances}
    return config, [arrival for arrival in arrivals if fits(arrival, engines)]


def _latencies(report: Report, ttft_s: Callable[[Served], float]) -> Result:
    return {
        "ttft_mean_s": report.mean(ttft_s),
        "ttft_p99_s": report.quantile(P99, ttft_s),
        "pooled_ttft_p99_s": report.quantile(P99, lambda r: r.ttft_s),
        "e2e_mean_s": report.mean(lambda r: r.e2e_s),
        "e2e_p99_s": report.quantile(P99, lambda r: r.e2e_s),
        "requests": len(report.served),
        "preemptions": report.preemptions,
    }


def throughput(served: Sequence[Served]) -> Result:
    """Output tokens a second, and requests of mean length, between the first tokens of
    the requests at `FIRST` and `LAST`.

    A request's tokens are taken to be evenly spread from its first to its last.
    """
    firsts = sorted(r.arrival_s + r.ttft_s for r in served)
    begin_s, end_s = firsts[int(FIRST * len(firsts))], firsts[int(LAST * len(firsts))]
    tokens = sum(r.output_tokens * _share(r, begin_s, end_s) for r in served)
    rate = tokens / (end_s - begin_s)
    return {
        "tokens_per_s": rate,
        "requests_per_s": rate / fmean(r.output_tokens for r in served),
    }


def _share(request: Served, begin_s: float, end_s: float) -> float:
    """The share of the time from its first to its last token that is between the two."""
    first_s, last_s = request.arrival_s + request.ttft_s, request.arrival_s + request.e2e_s
    if first_s == last_s:
        return float(begin_s <= first_s < end_s)
    within_s = min(last_s, end_s) - max(first_s, begin_s)
    return max(0.0, within_s) / (last_s - first_s)


def _recomputed(report: Report) -> Result:
    """The ratio of tokens that were computed again to all that were computed.

    Once are needed the prompt, less what was cached, and the output with the one token behind it
    that async scheduling computes. Where prefixes are cached a preempted request finds some of its
    own again, so the number says less.
    """
    needed = sum(r.prompt_tokens - r.cached_tokens + r.output_tokens for r in report.served)
    return {"recomputed": 1.0 - needed / report.computed_tokens}


def ordered(case: BoundCase, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """With priorities, by what the setting's estimates say of their lengths."""
    if case.order == "fcfs":
        return list(arrivals)
    estimate = estimator(case.scheduler.estimates, case.seed)  # says what schedulers will be told
    works = [work(a.prompt_tokens, estimate(a).expected_tokens) for a in arrivals]
    priorities = ORDERS[case.order](works)
    return [replace(a, priority=p) for a, p in zip(arrivals, priorities, strict=True)]


def work(prompt_tokens: float, output_tokens: float) -> float:
    """KV tokens that a request holds, times steps."""
    return output_tokens * (prompt_tokens + output_tokens / 2)


def _shortest_first(works: Sequence[float]) -> list[int]:
    ranks = {index: rank for rank, index in enumerate(_ascending(works))}
    return [ranks[index] for index in range(len(works))]


def _largest_last(works: Sequence[float]) -> list[int]:
    """The requests that may exceed the P99 are served when nobody else waits."""
    last = set(_ascending(works)[int(P99 * len(works)) + 1 :])
    return [int(index in last) for index in range(len(works))]


def _ascending(works: Sequence[float]) -> list[int]:
    return sorted(range(len(works)), key=lambda index: works[index])


ORDERS: dict[str, Callable[[Sequence[float]], list[int]]] = {
    "fcfs": lambda works: [0] * len(works),
    "shortest_first": _shortest_first,
    "largest_last": _largest_last,
}
"""From requests' work to their priorities, of which lower ones go first."""
