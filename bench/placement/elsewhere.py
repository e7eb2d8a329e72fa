"""How far off is what `foretell explain` says would have happened on the other engines?

A run is simulated, and then once more for each engine and each of some of its requests: all is as
it was until this request goes to that engine, and from then on the policy goes on. What happens is
compared with what the twin said, from what was known when the request was placed and with the true
length of its answer, as `foretell explain` says it with hindsight.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

from bench.placement.a30 import DESCRIPTION, Lengths, Load, cluster, read_lengths
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from bench.stats import percentile
from foretell.model import LengthEstimate, Prediction, RequestSpec
from foretell.placement import PlacementConfig
from foretell.placement.decision import Decision
from foretell.policy import Candidate
from foretell.policy.slo import SloPolicy
from foretell.sim import ClusterConfig, Report, simulate
from foretell.sim.config import true_length
from foretell.workload import Arrival, noisy_length

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="3 minutes",
    paths={"LENGTHS.csv": "prompt and output lengths"},
    processes=2,
)
ENGINES = 4
NOISE_SIGMA = 0.6
"""Standard deviation of the logarithm of a true length around the estimated one."""
LOADS = {"low": 4.0, "usual": 8.0, "high": 10.0}
"""Requests per second of the whole cluster."""

_NOTABLE = 0.05


class Recording(SloPolicy):
    """The default policy, which keeps its decisions."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, Decision] = {}

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """Choose by `slo`, and keep how."""
        memory = self.memory
        name = super().choose(request, candidates, draw)
        chosen = next(c for c in candidates if c.instance_id == name)
        self.made[request.request_id] = Decision(request, candidates, draw, memory, chosen)
        return name


class Forced(SloPolicy):
    """Places one request where it is told to, and keeps what was foretold of it."""

    def __init__(self, watched: str, place: str) -> None:
        super().__init__()
        self._watched = watched
        self._place = place
        self.foretold: dict[str, Prediction] = {}
        """By instance, of the watched request."""

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """Choose by `slo`, but for one request."""
        if request.request_id != self._watched:
            return super().choose(request, candidates, draw)
        told = [c.prediction for c in candidates if c.prediction is not None]
        self.foretold = {each.instance_id: each for each in told}
        return self._place


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run: what its requests were, and where they went."""

    arrivals: Sequence[Arrival]
    estimates: Mapping[str, LengthEstimate]
    made: Mapping[str, Decision]
    report: Report


def record(arrivals: Sequence[Arrival], seed: int) -> Run:
    """Simulate the default policy with lengths that are estimated badly."""
    estimate = noisy_length(NOISE_SIGMA, Random(f"{seed} estimates"))
    estimates = {arrival.request_id: estimate(arrival) for arrival in arrivals}
    policy = Recording()
    report = simulate(_config(estimates), arrivals, [policy], Random(seed))
    return Run(arrivals, estimates, policy.made, report)


def _config(estimates: Mapping[str, LengthEstimate]) -> ClusterConfig:
    # Nothing is called back: it would not stay where it is sent.
    placement = PlacementConfig(recall=False)
    return cluster(ENGINES, estimate=lambda a: estimates[a.request_id], placement=placement)


def elsewhere(run: Run, number: int, seed: int) -> list[dict[str, Any]]:
    """For each engine: what the twin says of a request there, and what happens when it goes there.

    Latencies are seconds since it was placed.
    """
    watched = run.arrivals[number]
    key = watched.request_id
    went = run.made[key].chosen.instance_id
    known = {**run.estimates, key: true_length(watched)}
    found = []
    for candidate in run.made[key].candidates:
        name = candidate.instance_id
        policy = Forced(key, name)
        report = simulate(_config(known), run.arrivals, [policy], Random(seed))
        served = next(each for each in report.served if each.request_id == key)
        waited_s = served.placed_s - served.arrival_s
        found.append(
            {
                "chosen": name == went,
                "foretold_ttft_s": policy.foretold[name].ttft_s,
                "foretold_e2e_s": policy.foretold[name].e2e_s,
                "ttft_s": served.ttft_s - waited_s,
                "e2e_s": served.e2e_s - waited_s,
            }
        )
    return found


@dataclass(frozen=True, slots=True)
class Case:
    """One run, some of whose requests are placed elsewhere."""

    load: str
    seed: int


def judge(case: Case, lengths: Lengths, requests: int, watched: int) -> list[dict[str, Any]]:
    """What `elsewhere` finds of `watched` requests in the second half of a run."""
    load = Load(LOADS[case.load], requests, case.seed, lengths)
    run = record(load.arrivals(), case.seed)
    numbers = Random(f"{case.seed} watched").sample(range(requests // 2, requests), watched)
    return [
        {"load": case.load, "seed": case.seed, "number": number, **each}
        for number in sorted(numbers)
        for each in elsewhere(run, number, case.seed)
    ]


def errors(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How far off the twin is, over requests and engines."""
    e2e = [abs(each["foretold_e2e_s"] / each["e2e_s"] - 1) for each in found]
    signed = [each["foretold_e2e_s"] / each["e2e_s"] - 1 for each in found]
    ttft = [abs(each["foretold_ttft_s"] - each["ttft_s"]) for each in found]
    return {
        "pairs": len(found),
        "e2e_error_p50": percentile(e2e, 50),
        "e2e_error_p90": percentile(e2e, 90),
        "e2e_bias": fmean(signed),
        "ttft_error_p50_s": percentile(ttft, 50),
        "ttft_error_p90_s": percentile(ttft, 90),
    }


def agreement(found: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Comparisons of an engine with the chosen one in which the request would have ended at least
    5% sooner or later, and in how many of these the twin says which."""
    asked = right = 0
    by_request: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for each in found:
        request = each["load"], each["seed"], each["number"]
        by_request.setdefault(request, []).append(each)
    for engines in by_request.values():
        chosen = next(each for each in engines if each["chosen"])
        for other in engines:
            if abs(other["e2e_s"] / chosen["e2e_s"] - 1) >= _NOTABLE:
                asked += 1
                said = other["foretold_e2e_s"] > chosen["foretold_e2e_s"]
                right += said == (other["e2e_s"] > chosen["e2e_s"])
    return asked, right


def tables(numbers: Numbers) -> Blocks:
    """A table of errors by load, where the request went and elsewhere."""
    found = numbers["found"]
    seeds = sorted({each["seed"] for each in found})
    lines = [
        made_by(numbers),
        f"Laboratory: simulated. {ENGINES} {DESCRIPTION}; {numbers['requests']} requests with real "
        f"lengths, which are estimated with {NOISE_SIGMA:.0%} log-normal noise, Poisson arrivals, "
        f"{numbers['watched']} requests of each run placed on each engine, seeds "
        f"{', '.join(map(str, seeds))}. The watched request's own length is known, the others' are "
        "not, nor is who comes later. Step times are those that the engines have.\n",
    ]
    rows = []
    for load, per_s in LOADS.items():
        for chosen in (True, False):
            mine = [e for e in found if e["load"] == load and e["chosen"] == chosen]
            if not mine:
                continue
            where = "where it went" if chosen else "elsewhere"
            figures = errors(mine)
            rows.append(
                (
                    f"{per_s:g} requests/s, {where}",
                    figures["pairs"],
                    f"{figures['e2e_error_p50']:.1%}",
                    f"{figures['e2e_error_p90']:.1%}",
                    f"{figures['e2e_bias']:+.1%}",
                    f"{figures['ttft_error_p50_s']:.3f}",
                    f"{figures['ttft_error_p90_s']:.3f}",
                )
            )
    header = ("", "pairs", "e2e error p50", "p90", "mean, signed", "TTFT error p50, s", "p90, s")
    lines.append(markdown_table(header, rows))
    compared = []
    for load, per_s in LOADS.items():
        asked, right = agreement([e for e in found if e["load"] == load])
        if asked:
            compared.append((f"{per_s:g} requests/s", asked, f"{right / asked:.1%}"))
    lines.append(
        "Where the request would have ended at least 5% sooner or later than where it went, the "
        "twin says which of the two:\n"
    )
    lines.append(markdown_table(("", "comparisons", "says so"), compared))
    return {"tables": "\n".join(lines)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=200, help="Requests of a run.")
    parser.add_argument("--watched", type=int, default=4, help="Requests placed elsewhere.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])


def measure(options: argparse.Namespace) -> Numbers:
    """Record and repeat a run for each load and seed."""
    cases = [Case(load, seed) for load in LOADS for seed in options.seeds]
    one = partial(
        judge,
        lengths=read_lengths(options.lengths),
        requests=options.requests,
        watched=options.watched,
    )
    found = run_each(one, cases, options.processes)
    return {
        "requests": options.requests,
        "watched": options.watched,
        "found": [each for part in found for each in part],
    }
