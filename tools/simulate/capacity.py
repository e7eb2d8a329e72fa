"""The highest rate that a cluster serves within a bound, one search for each seed.

Each search brackets the rate by doubling or halving and then bisects on the logarithm. One probe
is one simulation; the probes of different seeds run side by side, in processes that get plain data.
"""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from math import inf, sqrt
from multiprocessing import get_context
from os import cpu_count
from statistics import fmean, stdev
from typing import Any

from foretell.tools.progress import progress
from foretell.tools.simulate.options import SimulateOptions
from foretell.tools.simulate.run import run

_MOST_DOUBLINGS = 20
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched for, and how closely."""

    bound_s: float
    """Bound on the P99 of TTFT."""
    seeds: tuple[int, ...]
    start_qps: float
    tolerance: float
    """Relative width of the bracket at which a search ends."""
    goodput: float = 0.0
    """Least ratio of all requests that must meet their targets; above 0, instead of the bound."""

    def good(self, measured: float) -> bool:
        """Whether what a probe measured is good enough."""
        return measured >= self.goodput if self.goodput else measured <= self.bound_s


@dataclass(slots=True)
class Bracket:
    """One seed's search: the highest rate known to be served and the lowest known not to be."""

    seed: int
    next_qps: float
    tolerance: float
    low: float = 0.0
    high: float = 0.0
    probes: dict[float, float] = field(default_factory=dict)
    """The measured value at each rate that was tried."""

    def learn(self, measured: float, *, good: bool) -> bool:
        """Take the next probe's result; returns whether another is wanted, then at `next_qps`."""
        qps = self.next_qps
        self.probes[qps] = measured
        if good:
            self.low = qps
        else:
            self.high = qps
        if self.low and self.high:
            self.next_qps = sqrt(self.low * self.high)
            return self.high > self.low * (1 + self.tolerance)
        self.next_qps = qps * 2 if self.low else qps / 2
        return len(self.probes) < _MOST_DOUBLINGS


def probe(options: SimulateOptions, qps: float, seed: int, *, goodput: bool) -> float:
    """The P99 of TTFT of all that were served, infinite where none was; or with `goodput` the
    ratio of all requests that met their targets, ValueError where none has any."""
    found = run(options, qps, seed).summary()
    if not goodput:
        return float(found["ttft_s"].get("p99", inf))
    if "within_slo" not in found:
        raise ValueError("--goodput needs targets: --ttft-slo-s, --tpot-slo-s, or the trace's")
    return float(found["within_slo"])


def find_capacity(options: SimulateOptions, search: Search, processes: int = 0) -> dict[str, Any]:
    """What `foretell capacity` prints; ValueError where the options are wrong."""
    workers = min(processes or cpu_count() or 1, len(search.seeds))
    with (
        # Spawned: a forked child would share the parent's threads and locks, badly.
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
        progress() as bar,
    ):
        tasks = {seed: bar.add_task(f"seed {seed}", total=None) for seed in search.seeds}

        def tell(bracket: Bracket) -> None:
            text = f"seed {bracket.seed}: {bracket.low:.4g} to {bracket.high or inf:.4g}"
            bar.update(tasks[bracket.seed], description=text, advance=1)

        brackets = searched(options, search, pool, tell)
    return report(options, search, brackets)


def searched(
    options: SimulateOptions,
    search: Search,
    pool: Executor,
    tell: Callable[[Bracket], None],
) -> list[Bracket]:
    """All searches to their ends, in the order of their seeds."""
    brackets = [Bracket(seed, search.start_qps, search.tolerance) for seed in search.seeds]
    running: dict[Future[float], Bracket] = {}

    def submit(bracket: Bracket) -> None:
        case = (options, bracket.next_qps, bracket.seed)
        running[pool.submit(probe, *case, goodput=search.goodput > 0)] = bracket

    for bracket in brackets:
        submit(bracket)
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            bracket = running.pop(future)
            measured = future.result()
            if bracket.learn(measured, good=search.good(measured)):
                submit(bracket)
            tell(bracket)
    return brackets


def report(options: SimulateOptions, search: Search, brackets: list[Bracket]) -> dict[str, Any]:
    """The mean over the seeds and each one's own, as JSON."""
    found = [bracket.low for bracket in brackets]
    measured = "within_slo" if search.goodput else "ttft_p99_s"
    criterion: dict[str, Any] = {"ttft_p99_bound_s": search.bound_s}
    if search.goodput:
        criterion = {"goodput": search.goodput}
        criterion |= {"ttft_slo_s": options.ttft_slo_s, "tpot_slo_s": options.tpot_slo_s}
        criterion |= {"reject_late": options.reject_late}
    return {
        "capacity_qps": round(fmean(found), _DIGITS),
        "stdev_qps": round(stdev(found), _DIGITS) if len(found) > 1 else 0.0,
        **criterion,
        "tolerance": search.tolerance,
        "seeds": {
            str(bracket.seed): {
                "capacity_qps": round(bracket.low, _DIGITS),
                "refuted_qps": round(bracket.high, _DIGITS),
                measured: {f"{qps:.4f}": value for qps, value in sorted(bracket.probes.items())},
            }
            for bracket in brackets
        },
        "policy": options.policy,
        "profile": ",".join(f"{e.profile}x{e.instances}" for e in options.engines),
        "estimates": options.estimates,
        "requests": options.requests,
        "schedulers": options.schedulers,
    }
