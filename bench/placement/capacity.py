"""How many requests a second can a cluster serve within a bound on its TTFT, by policy?

The families, engines and delays of `bench.placement.yardstick`. For each policy and seed, the
highest rate at which the P99 of TTFT stays within the bound is found by simulation; arrivals depend
on rate and seed alone. Finished searches are kept in build/ while the code is the same.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from bench.placement.families import FAMILIES
from bench.placement.yardstick import (
    BLOCK,
    KNOWN,
    OURS,
    SECONDS,
    SEE_PREFIXES,
    WITHOUT_FORECASTS,
    capacity,
    family_of,
)
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import Kept, state_of_the_code
from bench.stats import geometric_mean, ratio_interval

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="40 minutes",
    paths={"TRACES": "folder of the traces"},
    processes=2,
)
POLICIES = (OURS, BLOCK, *WITHOUT_FORECASTS)


@dataclass(frozen=True, slots=True)
class Case:
    """One search."""

    family: str
    policy: str
    knows: str
    seed: int


def found(case: Case, traces: Path, close: float) -> float:
    """The capacity, in requests a second."""
    family = family_of(case.family)
    return capacity(
        family, traces, policy=case.policy, knows=case.knows, seed=case.seed, close=close
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    names = [family.name for family in FAMILIES]
    parser.add_argument("--seeds", type=int, default=5, help="Number of seeds, 2 to 10.")
    parser.add_argument("--families", nargs="+", choices=names, default=["chat"])
    text = "The highest rate that is too low and the lowest that is too high differ by this factor."
    parser.add_argument("--close", type=float, default=1.01, help=text)


def measure(options: argparse.Namespace) -> Numbers:
    """Make the searches that have not been made yet."""
    cases = [
        Case(family, policy, knows, seed)
        for seed, family, knows, policy in product(
            range(1, options.seeds + 1), options.families, KNOWN, POLICIES
        )
        if knows == "tagger" or policy not in WITHOUT_FORECASTS  # whom lengths do not concern
        if family_of(family).prefixes or policy not in SEE_PREFIXES
    ]
    search = partial(found, traces=options.traces, close=options.close)
    rates = Kept(BENCH.kept, state_of_the_code()).all_of(
        search, cases, options.processes, "searches"
    )
    rows = [
        {"family": c.family, "policy": c.policy, "knows": c.knows, "seed": c.seed, "qps": qps}
        for c, qps in zip(cases, rates, strict=True)
    ]
    return {"close": options.close, "rows": rows}


def tables(numbers: Numbers) -> Blocks:
    """A table for each family."""
    rows = numbers["rows"]
    seeds = len({row["seed"] for row in rows})
    text = [
        made_by(numbers),
        f"*Laboratory*: simulated, with the delays of a deployed cluster; {SECONDS:g} s of "
        f"arrivals for each of {seeds} seeds, rates found within a factor of "
        f"{numbers['close']:g}. Geometric means over the seeds; in brackets, 95% intervals "
        "(Student's t). Only `slo` calls requests back.\n",
    ]
    for family in dict.fromkeys(row["family"] for row in rows):
        chosen = [row for row in rows if row["family"] == family]
        text += [f"### {family[0].upper()}{family[1:]}\n", _table(chosen)]
    return {"tables": "\n".join(text)}


def _table(rows: Sequence[Numbers]) -> str:
    """Every policy's capacity, and how much more `slo` has with the same knowledge."""
    lines = []
    for knows, policy in dict.fromkeys((row["knows"], row["policy"]) for row in rows):
        rates, ours = _rates(rows, policy, knows), _rates(rows, OURS, knows)
        mean, low, high = ratio_interval([a / b for a, b in zip(ours, rates, strict=True)])
        more = f"{mean - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})" if policy != OURS else ""
        lines.append([f"`{policy}`, {KNOWN[knows]}", f"{geometric_mean(rates):.2f}", more])
    return markdown_table(("policy", "requests/s", "`slo` beside it"), lines)


def _rates(rows: Sequence[Numbers], policy: str, knows: str) -> list[float]:
    """By seed, in their order."""
    mine = {r["seed"]: r["qps"] for r in rows if (r["policy"], r["knows"]) == (policy, knows)}
    return [mine[seed] for seed in sorted(mine)]
