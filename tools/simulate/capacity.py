"""The highest rate that a cluster serves within a bound: a search for each seed, in parallel."""

from dataclasses import dataclass, field
from functools import partial
from math import inf, sqrt
from os import cpu_count
from statistics import fmean, stdev
from typing import Any

from foretell.tools.progress import side_by_side
from foretell.tools.simulate.options import SimulateOptions
from foretell.tools.simulate.run import run

_MOST_DOUBLINGS = 20
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Search:
    """The criterion of a search, and its precision."""

    bound_s: float
    """Bound on the P99 of TTFT."""
    seeds: tuple[int, ...]
    start_qps: float
    tolerance: float
    """Relative width of the bracket at which a search ends."""
    goodput: float = 0.0
    """Least ratio of all requests that must meet their targets; above 0, it replaces the bound."""

    def good(self, measured: float) -> bool:
        """Whether what a probe measured is good enough."""
        return measured >= self.goodput if self.goodput else measured <= self.bound_s


@dataclass(slots=True)
class Found:
    """One seed's search: the highest rate known to be served and the lowest known not to be."""

    seed: int
    low: float = 0.0
    high: float = 0.0
    probes: dict[float, float] = field(default_factory=dict)
    """The measured value at each rate that was tried."""


def probe(options: SimulateOptions, qps: float, seed: int, *, goodput: bool) -> float:
    """The P99 of TTFT of served requests, infinite if there are none. With `goodput`, the ratio of
    all requests that met their targets; ValueError if none has targets."""
    found = run(options, qps, seed).summary()
    if not goodput:
        return float(found["ttft_s"].get("p99", inf))
    if "within_slo" not in found:
        raise ValueError("--goodput needs targets: --ttft-slo-s, --tpot-slo-s, or the trace's")
    return float(found["within_slo"])


def find_capacity(options: SimulateOptions, search: Search, processes: int = 0) -> dict[str, Any]:
    """What `foretell capacity` prints; ValueError if the options are wrong."""
    workers = min(processes or cpu_count() or 1, len(search.seeds))
    found = side_by_side(partial(searched, options, search), search.seeds, workers, "searches")
    return report(options, search, list(found))


def searched(options: SimulateOptions, search: Search, seed: int) -> Found:
    """The search for one seed: double or halve the rate until the highest one is bracketed, then
    bisect the bracket on the logarithm."""
    found, qps = Found(seed), search.start_qps
    while len(found.probes) < _MOST_DOUBLINGS or (found.low and found.high):
        measured = probe(options, qps, seed, goodput=search.goodput > 0)
        found.probes[qps] = measured
        if search.good(measured):
            found.low = qps
        else:
            found.high = qps
        if not (found.low and found.high):
            qps = qps * 2 if found.low else qps / 2
        elif found.high > found.low * (1 + search.tolerance):
            qps = sqrt(found.low * found.high)
        else:
            break
    return found


def report(options: SimulateOptions, search: Search, searches: list[Found]) -> dict[str, Any]:
    """The mean over the seeds, and the result of each seed, as JSON."""
    found = [each.low for each in searches]
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
            str(each.seed): {
                "capacity_qps": round(each.low, _DIGITS),
                "refuted_qps": round(each.high, _DIGITS),
                measured: {f"{qps:.4f}": value for qps, value in sorted(each.probes.items())},
            }
            for each in searches
        },
        "policy": options.policy,
        "profile": ",".join(f"{e.profile}x{e.instances}" for e in options.engines),
        "estimates": options.estimates,
        "requests": options.requests,
        "schedulers": options.schedulers,
    }
