"""Simulated clusters with the delays of deployed ones, their figures, and finished runs on disk."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from bench.placement.block.runs import state_of_the_code
from bench.report import Numbers
from bench.runs import pool, progress
from foretell.policy import make_policy
from foretell.sim import ClusterConfig, Report, Served, simulate
from foretell.tools.simulate.cluster import cluster_config
from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.workload import Arrival

PUBLISH_S, NETWORK_S, DISPATCH_S = 0.1, 0.001, 0.005
FIGURES: dict[str, Callable[[Report], float]] = {
    "ttft_mean_s": lambda r: r.mean(_ttft_s),
    "ttft_p99_s": lambda r: r.quantile(0.99, _ttft_s),
    "ttft_p999_s": lambda r: r.quantile(0.999, _ttft_s),
    "ttft_max_s": lambda r: r.quantile(1.0, _ttft_s),
    "e2e_mean_s": lambda r: r.mean(_e2e_s),
    "e2e_p99_s": lambda r: r.quantile(0.99, _e2e_s),
    "tpot_p99_s": lambda r: r.quantile(0.99, lambda s: s.tpot_s),
    "preemptions_per_1000": lambda r: 1000 * r.preemptions / len(r.served),
}


def _ttft_s(served: Served) -> float:
    return served.ttft_s


def _e2e_s(served: Served) -> float:
    return served.e2e_s


def figures_of(
    engines: Sequence[EngineOptions],
    arrivals: Sequence[Arrival],
    policy: str,
    estimates: str,
    seed: int,
    *,
    recall: bool = True,
    by_priority: bool = False,
) -> Numbers:
    """What comes of these arrivals, all of which fit. `recall`: queues are revocable;
    `by_priority`: engines admit by priority."""
    config = config_of(engines, arrivals, estimates, seed, by_priority=by_priority)
    config = replace(config, placement=replace(config.placement, recall=recall))
    report = simulate(config, arrivals, [make_policy(policy)], Random(f"{seed} cluster"))
    return {name: round(figure(report), 5) for name, figure in FIGURES.items()}


def config_of(
    engines: Sequence[EngineOptions],
    arrivals: Sequence[Arrival],
    estimates: str,
    seed: int,
    *,
    by_priority: bool = False,
) -> ClusterConfig:
    """A cluster of these engines, with the delays of a deployed one, that serves `arrivals`."""
    options = SimulateOptions(
        "",
        tuple(engines),
        estimates=estimates,
        publish_interval_s=PUBLISH_S,
        network_delay_s=NETWORK_S,
        dispatch_delay_s=DISPATCH_S,
        scheduling_policy="priority" if by_priority else "fcfs",
    )
    prefixes = any(arrival.prefix for arrival in arrivals)
    return cluster_config(options, seed, prefixes=prefixes, trace=arrivals)


def by_seed(rows: Iterable[Numbers], figure: str, **wanted: object) -> list[float]:
    """The figure of each seed, in their order, of the rows in which these fields have these
    values."""
    found = {
        row["seed"]: row[figure]
        for row in rows
        if all(row[name] == value for name, value in wanted.items())
    }
    return [found[seed] for seed in sorted(found)]


class Kept:
    """Results by what was asked, in a JSON lines file, of this state of the code."""

    def __init__(self, path: Path) -> None:
        self._path, self._state = path, state_of_the_code()
        self._found: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                if entry["state"] == self._state:
                    self._found[entry["asked"]] = entry["result"]

    def all_of(
        self, work: Callable[[Any], Any], asked: Sequence[Any], processes: int, what: str
    ) -> list[Any]:
        """The result of `work` for each of `asked`, made by several processes where not kept."""
        missing = [each for each in asked if repr(each) not in self._found]
        with pool(processes) as workers, progress() as bar:
            results = bar.track(workers.map(work, missing), len(missing), description=what)
            for each, result in zip(missing, results, strict=True):
                self._keep(repr(each), result)
        return [self._found[repr(each)] for each in asked]

    def _keep(self, asked: str, result: Any) -> None:
        self._found[asked] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            entry = {"state": self._state, "asked": asked, "result": result}
            file.write(json.dumps(entry) + "\n")
