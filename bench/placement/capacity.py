"""How many requests a second can a cluster serve within a bound on its TTFT, by policy?

Families, engines and delays are those of `bench.placement.yardstick`. For each policy and seed,
simulations find the highest rate at which the P99 of TTFT stays within the bound; arrivals depend
only on rate and seed. Finished searches are kept in build/ while the code is the same.
"""

import argparse
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

from bench.placement.families import FAMILIES
from bench.placement.simulated import by_seed, merged
from bench.placement.yardstick import (
    BLOCK,
    OURS,
    SECONDS,
    SEE_PREFIXES,
    WITHOUT_FORECASTS,
    capacity,
    family_of,
)
from bench.report import Benchmark, Blocks, Numbers, made_by
from bench.runs import Kept, state_of_the_code
from foretell.tools.intervals import geometric_mean, ratio_interval
from foretell.tools.markdown import markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="40 minutes",
    paths={"TRACES": "folder of the traces"},
    processes=2,
)
POLICIES = (OURS, BLOCK, *WITHOUT_FORECASTS)
KNOWN = {"tagger": "as the tagger says", "true": "true lengths"}
CLOSE = 1.01
"""A search ends when its highest rate within the bound and its lowest beyond differ by this."""


@dataclass(frozen=True, slots=True)
class Case:
    """One search."""

    family: str
    policy: str
    knows: str
    seed: int


def found(case: Case, traces: Path, close: float, seconds: float) -> Numbers:
    """The capacity, in requests a second."""
    family = family_of(case.family)
    qps = capacity(
        family,
        traces,
        policy=case.policy,
        knows=case.knows,
        seed=case.seed,
        close=close,
        seconds=seconds,
    )
    return {**asdict(case), "qps": qps}


def arguments(parser: argparse.ArgumentParser) -> None:
    names = [family.name for family in FAMILIES]
    parser.add_argument("--seeds", type=int, default=5, help="Number of seeds, 2 to 10.")
    parser.add_argument("--first-seed", type=int, default=1, help="Leave out those before.")
    parser.add_argument("--family", choices=names, default="chat")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--knows", nargs="+", choices=KNOWN, default=[*KNOWN])


def measure(options: argparse.Namespace) -> Numbers:
    """Make the requested searches that are missing; the family's other rows stay as they were last
    written."""
    seeds, close, seconds = range(options.first_seed, options.seeds + 1), CLOSE, SECONDS
    if options.quick:
        seeds, close, seconds, options.knows = range(1, 3), 2.0, 20.0, ["tagger"]
    cases = [
        Case(options.family, policy, knows, seed)
        for seed, knows, policy in product(seeds, options.knows, options.policies)
        if knows == "tagger" or policy not in WITHOUT_FORECASTS  # they ignore lengths
        if family_of(options.family).prefixes or policy not in SEE_PREFIXES
    ]
    search = partial(found, traces=options.traces, close=close, seconds=seconds)
    kept = Kept(BENCH.kept, state_of_the_code())
    rows = kept.all_of(search, cases, options.processes, "searches")
    last = [] if options.quick else BENCH.read()["rows"]
    same = [row for row in last if row["family"] == options.family]
    return {"close": close, "rows": merged(same, rows)}


def tables(numbers: Numbers) -> Blocks:
    """Every policy's capacity, and how much more `slo` has with the same knowledge."""
    rows = numbers["rows"]
    seeds = len({row["seed"] for row in rows})
    text = (
        f"*Laboratory*: simulated, with the delays of a deployed cluster; {rows[0]['family']}, "
        f"{SECONDS:g} s of arrivals for each of {seeds} seeds, rates found within a factor of "
        f"{numbers['close']:g}. Geometric means over the seeds; in brackets, 95% intervals "
        "(Student's t).\n"
    )
    lines = []
    for knows, policy in dict.fromkeys((row["knows"], row["policy"]) for row in rows):
        rates, ours = (by_seed(rows, "qps", policy=p, knows=knows) for p in (policy, OURS))
        mean, low, high = ratio_interval([a / b for a, b in zip(ours, rates, strict=True)])
        more = f"{mean - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})" if policy != OURS else ""
        lines.append([f"`{policy}`, {KNOWN[knows]}", f"{geometric_mean(rates):.2f}", more])
    table = markdown_table(("policy", "requests/s", "`slo` beside it"), lines)
    return {"tables": "\n".join([made_by(numbers), text, table])}
