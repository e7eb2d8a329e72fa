"""One tuning: a cluster and a trace in, what to change and what it is worth out."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from os import cpu_count
from typing import Any

from foretell.tools.progress import progress
from foretell.tools.simulate.capacity import Search, find_capacity
from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.tools.simulate.run import read_trace, run
from foretell.tools.tune.changes import Proposals, applied, propose, starts
from foretell.tools.tune.options import Memory, TuneOptions
from foretell.tools.tune.search import Found, Judge, Measures, Setup, search
from foretell.workload import Trace

_TOLERANCE = 0.02  # relative width at which a search for a capacity ends


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found, and of what."""

    options: SimulateOptions
    tune: TuneOptions
    proposals: Proposals
    found: Found
    arrivals_shared: bool
    """Whether seeds had the same requests at the same times, all of them or some."""
    capacities_qps: tuple[float, float] | None = None
    """Before and after the recommended changes; None: not asked for, or none is recommended."""

    @property
    def recommended(self) -> Setup:
        """The changes to make; none: everything is best left as it is."""
        return self.found.after.setup if self.found.confirmed else ()


def tune(
    options: SimulateOptions, tuning: TuneOptions, memory: Memory, keep: frozenset[str]
) -> Tuned:
    """Search, confirm and find capacities, with a progress bar; ValueError says what is wrong."""
    trace = read_trace(options.trace, options.trace_format)
    proposals = propose(options, trace, memory, keep)
    fresh = tuple(range(tuning.seeds + 1, 2 * tuning.seeds + 1))
    pieces = pieces_of(options, trace, 2 * tuning.seeds)
    with _workers(tuning.processes or cpu_count() or 1) as pool, progress() as bar:
        task = bar.add_task("runs", total=0)

        def simulate(runs: Sequence[tuple[Setup, int]]) -> list[Measures]:
            bar.update(task, total=(bar.tasks[task].total or 0) + len(runs))
            cases = [
                Case(applied(pieces.get(seed, options), setup), tuning.qps, seed, options.engines)
                for setup, seed in runs
            ]
            found = []
            for measured in pool(cases):
                found.append(measured)
                bar.advance(task)
            return found

        found = search(
            proposals.changes,
            simulate,
            Judge(tuning.goal, tuning.tolerance),
            tuple(range(1, tuning.seeds + 1)),
            fresh,
            lambda setup: starts(applied(options, setup)),
        )
    apart = bool(pieces) and len(trace.requests) >= len(pieces) * options.requests + options.skip
    result = Tuned(options, tuning, proposals, found, trace.timed and not apart)
    if tuning.capacity_ttft_p99_s and result.recommended:
        setups = (options, applied(options, result.recommended))
        before, after = (_capacity_qps(each, tuning) for each in setups)
        result = replace(result, capacities_qps=(before, after))
    return result


def pieces_of(options: SimulateOptions, trace: Trace, count: int) -> dict[int, SimulateOptions]:
    """Pieces of a trace with times, evenly spread, by the seeds 1 to `count`.

    Empty where every seed takes the same requests: of a trace without times, which each puts into
    an order of its own, or where fewer than two pieces would fit. The pieces of the search and
    those of the confirmation take turns.
    """
    left = len(trace.requests) - options.skip - options.requests
    if not trace.timed or not options.requests or left < options.requests:
        return {}
    found = {}
    for seed in range(1, count + 1):
        place = 2 * (seed - 1) if seed <= count // 2 else 2 * (seed - 1 - count // 2) + 1
        skip = options.skip + round(place * left / (count - 1))
        found[seed] = replace(options, skip=skip)
    return found


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation, as plain data."""

    options: SimulateOptions
    qps: float
    seed: int
    fitting_too: tuple[EngineOptions, ...]
    """Engines of other setups, which are compared by the same requests."""


def measure(case: Case) -> Measures:
    """Run it. Latencies in seconds; preemptions of 1,000 requests."""
    found = run(case.options, case.qps, case.seed, fitting_too=case.fitting_too).summary()
    return measures_of(found)


def measures_of(summary: dict[str, Any]) -> Measures:
    """The measures in what `foretell simulate` prints; TPOT and goodput where there are any."""
    ttft, e2e, tpot = summary["ttft_s"], summary["e2e_s"], summary["tpot_s"]
    if not ttft:
        raise ValueError("no request was served: see what `foretell simulate` says of this cluster")
    found = {
        "ttft_mean": ttft["mean"],
        "ttft_p99": ttft["p99"],
        "e2e_mean": e2e["mean"],
        "e2e_p99": e2e["p99"],
        "preemptions_per_1000": 1000 * summary["preemptions"] / summary["requests"],
        "refused": summary["refused"],
    }
    if tpot:
        found["tpot_p99"] = tpot["p99"]
    if "within_slo" in summary:
        found["goodput"] = summary["within_slo"]
    return found


_Pool = Callable[[Sequence[Case]], Iterator[Measures]]


@contextmanager
def _workers(processes: int) -> Iterator[_Pool]:
    """Runs cases in spawned processes, or in this one if there is to be one only."""
    if processes == 1:
        yield lambda cases: map(measure, cases)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield lambda cases: pool.map(measure, cases)


def _capacity_qps(options: SimulateOptions, tuning: TuneOptions) -> float:
    search = Search(
        bound_s=tuning.capacity_ttft_p99_s,
        seeds=tuple(range(1, tuning.seeds + 1)),
        start_qps=tuning.qps or float(options.instances),
        tolerance=_TOLERANCE,
    )
    return float(find_capacity(options, search, tuning.processes)["capacity_qps"])
