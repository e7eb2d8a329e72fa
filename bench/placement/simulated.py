"""Simulated clusters for the benchmarks of placement, their figures, and their capacity."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import log
from random import Random
from typing import Any

from bench.report import Numbers
from foretell.policy import Policy, make_policy
from foretell.sim import Report, ServedRequest, simulate
from foretell.tools.simulate.cluster import cluster_config
from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.workload import Arrival

A30 = EngineOptions(
    "A30/Llama-2-7b-hf",
    12,
    max_num_seqs=48,
    max_num_batched_tokens=512,
    num_blocks=1056,
    max_model_len=4096,
)
"""The Block paper's cluster."""
IN_TIME_TTFT_S, IN_TIME_TPOT_S = 2.0, 0.1
"""The targets by which goodput is counted; policies do not know them."""
_STEP, _MARGIN = 1.06, 0.15


def simulated(
    options: SimulateOptions,
    arrivals: Sequence[Arrival],
    seed: int,
    *,
    policy: Policy | None = None,
    **changes: Any,
) -> Report:
    """Simulate these arrivals, all of which fit an engine. `policy` replaces that of the options,
    `changes` replace other fields of the cluster's configuration."""
    prefixes = any(arrival.prefix for arrival in arrivals)
    config = cluster_config(options, seed, prefixes=prefixes, trace=arrivals)
    config = replace(config, learn_step_times=bool(options.faults), **changes)
    policy = policy or make_policy(options.policy)
    return simulate(config, arrivals, [policy], Random(f"{seed} cluster"))


def _ttft_s(served: ServedRequest) -> float:
    return served.ttft_s


def _e2e_s(served: ServedRequest) -> float:
    return served.e2e_s


def _in_time(served: ServedRequest) -> bool:
    return served.ttft_s <= IN_TIME_TTFT_S and served.tpot_s <= IN_TIME_TPOT_S


FIGURES: dict[str, Callable[[Report], float]] = {
    "ttft_mean_s": lambda r: r.mean(_ttft_s),
    "ttft_p99_s": lambda r: r.quantile(0.99, _ttft_s),
    "e2e_mean_s": lambda r: r.mean(_e2e_s),
    "e2e_p99_s": lambda r: r.quantile(0.99, _e2e_s),
    "tpot_p99_s": lambda r: r.quantile(0.99, lambda s: s.tpot_s),
    "in_time_ratio": lambda r: sum(map(_in_time, r.served)) / len(r.served),
    "throughput_rps": lambda r: r.throughput_rps,
    "preemptions_per_1000": lambda r: 1000 * r.preemptions / len(r.served),
}


def figures(report: Report) -> Numbers:
    """`FIGURES`: seconds, requests a second, counts."""
    return {name: round(figure(report), 5) for name, figure in FIGURES.items()}


def capacity_qps(
    ttft_p99_s: Callable[[float], float], bound_s: float, guess_qps: float, close: float = 1.015
) -> float:
    """The rate at which the P99 of TTFT crosses `bound_s`, between two rates that differ by at most
    the factor `close`.

    Near the bound P99 TTFT grows about exponentially with the rate, so the search probes where the
    straight line between the logarithms at the two rates crosses the bound.
    """
    found: dict[float, float] = {}
    qps = guess_qps
    while True:
        found[qps] = max(1e-6, ttft_p99_s(qps))
        high = min((rate for rate, p99_s in found.items() if p99_s > bound_s), default=0.0)
        kept = (rate for rate, p99_s in found.items() if p99_s <= bound_s)
        low = max((rate for rate in kept if not high or rate < high), default=0.0)
        if not (low and high):
            qps = round(max(found) * _STEP if low else min(found) / _STEP, 3)
            continue
        start, end = log(found[low]), log(found[high])
        crossing = low + (high - low) * (log(bound_s) - start) / (end - start)
        if high <= low * close:
            return crossing
        margin = _MARGIN * (high - low)
        qps = round(min(max(crossing, low + margin), high - margin), 3)


def merged(
    last: Iterable[Numbers],
    rows: Iterable[Numbers],
    fields: Sequence[str] = ("family", "policy", "knows", "seed"),
) -> list[Numbers]:
    """The rows of both runs, those of the later one where both ran a case."""
    return [*{tuple(row[each] for each in fields): row for row in (*last, *rows)}.values()]


def by_seed(rows: Iterable[Numbers], figure: str, **wanted: object) -> list[float]:
    """The figure of each seed, in the order of seeds, from the rows whose fields have the `wanted`
    values."""
    found = {
        row["seed"]: row[figure]
        for row in rows
        if all(row[name] == value for name, value in wanted.items())
    }
    return [found[seed] for seed in sorted(found)]
