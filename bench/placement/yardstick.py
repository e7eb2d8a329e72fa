"""Which policy serves which kind of traffic best, with true lengths and as the tagger would say?

TRACES holds the traces of `bench/placement/families.py`. A family's load is the highest rate at
which Block's policy, `predicted_latency`, that knows true lengths keeps the P99 of TTFT within a
bound (found by simulation with a seed of its own), and a part of it. Predictors see their engines
ten times a second, and asking and sending take the time that they take in a cluster.
Finished runs are kept in build/, so that an interrupted run goes on while the code is the same.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench.placement.bound import pooled
from bench.placement.families import FAMILIES, Family
from bench.placement.prefix_baselines import LongestMatch, PrefixHash
from bench.placement.simulated import by_seed, capacity_qps, figures, simulated
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import Kept, state_of_the_code
from foretell.policy import Policy
from foretell.tools.intervals import geometric_mean, ratio_interval
from foretell.tools.simulate.options import SimulateOptions

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="40 minutes",
    paths={"TRACES": "folder of the traces"},
    processes=2,
)
OURS, BLOCK = "slo", "predicted_latency"
SEE_PREFIXES = (PrefixHash.name, LongestMatch.name)
"""Those that gateways have for prompts that begin alike; run where prompts do."""
WITHOUT_FORECASTS = ("llumnix_minus", "least_outstanding", "round_robin", *SEE_PREFIXES)
BOUNDS = IN_ORDER, BY_SIZE = ("pool", "pool, by size")
"""No policies: what could be won (`bench.placement.bound`)."""
POLICIES = (OURS, BLOCK, *WITHOUT_FORECASTS)
KNOWN = {"tagger": "as the tagger says", "true": "true lengths"}
SECONDS, MOST_REQUESTS, SEEDS = 100.0, 12_000, 5
BOUND_S, BOUND_TIMES, CLOSE = 3.0, 3.0, 1.04
"""The bound on the P99 of TTFT: so long, or so many times as long as without load; and how closely
the rate at which it is reached is found."""
PUBLISH_S, NETWORK_S, DISPATCH_S = 0.1, 0.001, 0.005
COMPARED = {"ttft_mean_s": "mean TTFT", "ttft_p99_s": "P99 TTFT", "e2e_mean_s": "mean e2e"}


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    family: str
    policy: str
    knows: str
    qps: float
    seed: int
    seconds: float = SECONDS


def run(case: Case, traces: Path) -> Numbers:
    """The figures of one case; its arrivals depend on family, rate and seed alone."""
    family = family_of(case.family)
    count = min(MOST_REQUESTS, int(case.qps * case.seconds))
    options = SimulateOptions(
        engines=tuple(family.engines),
        policy=case.policy,
        estimates=case.knows,
        publish_interval_s=PUBLISH_S,
        network_delay_s=NETWORK_S,
        dispatch_delay_s=DISPATCH_S,
        faults=tuple(family.faults),
    )
    arrivals = family.arrivals(traces, case.qps, count, case.seed)
    if case.policy in BOUNDS:
        by_size = case.policy == BY_SIZE
        return {**asdict(case), **figures(pooled(options, arrivals, case.seed, by_size=by_size))}
    report = simulated(
        options,
        arrivals,
        case.seed,
        policy=_own(case.policy, family),
        recall=case.policy == OURS,
    )
    return {**asdict(case), **figures(report)}


def _own(policy: str, family: Family) -> Policy | None:
    """A policy that is the benchmark's and not the product's."""
    if policy == LongestMatch.name:
        return LongestMatch(family.configs()[0])
    return PrefixHash() if policy == PrefixHash.name else None


def capacity(
    family: Family,
    traces: Path,
    *,
    policy: str = BLOCK,
    knows: str = "true",
    seed: int = 0,
    close: float = CLOSE,
    seconds: float = SECONDS,
) -> float:
    """The highest rate at which a policy keeps the bound, in requests a second, found within a
    factor of `close`. The bound is that of Block's policy with true lengths."""

    def p99_s(case: Case) -> float:
        return float(run(case, traces)["ttft_p99_s"])

    alone = Case(family.name, BLOCK, "true", family.guess_qps / 10, 0, 4 * seconds)
    bound_s = max(BOUND_S, BOUND_TIMES * p99_s(alone))
    found = capacity_qps(
        lambda qps: p99_s(Case(family.name, policy, knows, qps, seed, seconds)),
        bound_s,
        family.guess_qps,
        close,
    )
    return round(found, 3)


def arguments(parser: argparse.ArgumentParser) -> None:
    names = [family.name for family in FAMILIES]
    parser.add_argument("--seeds", type=int, default=SEEDS, help="Number of seeds, 2 to 10.")
    parser.add_argument("--families", nargs="+", choices=names, default=names)


def measure(options: argparse.Namespace) -> Numbers:
    """Find the families' capacities, and simulate what has not been simulated yet."""
    kept, seconds = Kept(BENCH.kept, state_of_the_code()), SECONDS
    if options.quick:
        options.seeds, options.families, seconds = 2, options.families[:1], 5.0
        found = [family_of(name).guess_qps for name in options.families]
    else:
        find = partial(_capacity, traces=options.traces)
        found = kept.all_of(find, options.families, options.processes, "capacities")
    asked = [
        Case(family.name, policy, knows, round(family.load * qps, 3), seed, seconds)
        for seed in range(1, options.seeds + 1)
        for family, qps in zip(map(family_of, options.families), found, strict=True)
        for knows in KNOWN
        for policy in (*POLICIES, *BOUNDS)
        if knows == "tagger" or policy not in (*WITHOUT_FORECASTS, IN_ORDER)  # lengths are nothing
        if family.prefixes or policy not in SEE_PREFIXES
    ]
    rows = kept.all_of(partial(run, traces=options.traces), asked, options.processes, "runs")
    capacities = dict(zip(options.families, found, strict=True))
    return {"capacities_qps": capacities, "rows": rows}


def _capacity(name: str, traces: Path) -> float:
    return capacity(family_of(name), traces)


def family_of(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def tables(page: Numbers) -> Blocks:
    """Paired ratios to Block's policy, and to the best that makes no forecast, family by family."""
    seeds = len({row["seed"] for row in page["rows"]})
    text = (
        f"*Laboratory*: simulated; each family at its part of its capacity, {SECONDS:g} s for each "
        f"of {seeds} seeds. Ratios of `slo`'s figures to those of the other policy with the same "
        "requests, seed by seed: geometric means with 95% intervals (Student's t). *Simple* is the "
        "best policy without forecasts: that with the lowest geometric mean of the figure; its "
        f"name is that for P99 TTFT. Lengths are {KNOWN['tagger']}; in the last rows, true.\n"
    )
    rows, groups = [], []
    for decides, title in ((True, "chose the score"), (False, "unseen")):
        families = [family for family in _families(page) if family.decides == decides]
        for family in families:
            qps = page["capacities_qps"][family.name] * family.load
            simple = best_of(page, family.name, "ttft_p99_s", WITHOUT_FORECASTS, "tagger")
            cells = [
                "{:.2f} ({:.2f} to {:.2f})".format(*ratio_interval(ratios))
                for ratios in _compared(page, family.name, "tagger")
            ]
            rows.append(
                [f"{family.name}, {qps:.1f}/s", title, *cells[:3], f"`{simple}`", *cells[3:]]
            )
        for knows in KNOWN if families else ():
            found = zip(*(_compared(page, each.name, knows) for each in families), strict=True)
            means = [geometric_mean([geometric_mean(x) for x in each]) for each in found]
            cells = [f"**{mean:.2f}**" for mean in means]
            groups.append(
                [f"**{len(families)}, {KNOWN[knows]}**", title, *cells[:3], "", *cells[3:]]
            )
    names = [*COMPARED.values()]
    header = ("family", "role", *(f"Block: {name}" for name in names), "simple", *names)
    table = markdown_table(header, [*rows, *groups])
    return {"tables": "\n".join([made_by(page), text, table, "", *_shares(page)])}


def _shares(page: Numbers) -> list[str]:
    """How far policies come on the way from `round_robin` to the pool."""
    known = {"tagger": (*BOUNDS, OURS, BLOCK), "true": (BY_SIZE, OURS)}
    columns = [(policy, knows) for knows, policies in known.items() for policy in policies]
    rows = [
        [family.name, title, *_ways(page, family.name, figure, columns)]
        for family in _families(page)
        if any(row["family"] == family.name and row["policy"] == IN_ORDER for row in page["rows"])
        for figure, title in COMPARED.items()
    ]
    names = [f"`{policy}`, {knows}" for policy, knows in columns[1:]]
    header = ("family", "figure", "`round_robin`", IN_ORDER, *names, "best simple")
    text = (
        "The way from `round_robin` to one *pool* of all engines (`bench/placement/bound.py`), and "
        "how much of it each goes: geometric means over seeds; lengths as the tagger says, or true."
    )
    return [text, "", markdown_table(header, rows)]


def _ways(page: Numbers, family: str, figure: str, columns: Sequence[tuple[str, str]]) -> list[str]:
    """Both ends, in seconds, and of each of the columns but the first, which is the far end, how
    much of the way it goes; at last, of the best simple policy."""
    simple = best_of(page, family, figure, WITHOUT_FORECASTS, "tagger")
    start, end, *found = (
        geometric_mean(_values(page, family, *column, figure))
        for column in (("round_robin", "tagger"), *columns, (simple, "tagger"))
    )
    ways = [f"{(start - x) / (start - end):.0%}" if end < start else "" for x in found]
    return [f"{start:.3g} s", f"{end:.3g} s", *ways]


def _compared(page: Numbers, family: str, knows: str) -> list[list[float]]:
    """The ratios of each of `COMPARED` to Block's policy, and then to the best simple one."""
    return [
        ratios_of(page, family, knows, best_of(page, family, figure, rivals, knows), figure)
        for rivals in ((BLOCK,), WITHOUT_FORECASTS)
        for figure in COMPARED
    ]


def best_of(page: Numbers, family: str, figure: str, rivals: Sequence[str], knows: str) -> str:
    """The rival with the lowest geometric mean of this figure."""
    ran = {row["policy"] for row in page["rows"] if row["family"] == family}
    return min(
        (each for each in rivals if each in ran),
        key=lambda each: geometric_mean(_values(page, family, each, knows, figure)),
    )


def ratios_of(page: Numbers, family: str, knows: str, rival: str, figure: str) -> list[float]:
    """`slo`'s figures over those of the rival, seed by seed."""
    own, theirs = (_values(page, family, each, knows, figure) for each in (OURS, rival))
    return [a / b for a, b in zip(own, theirs, strict=True)]


def _families(page: Numbers) -> Iterable[Family]:
    return [family for family in FAMILIES if family.name in page["capacities_qps"]]


def _values(page: Numbers, family: str, policy: str, knows: str, figure: str) -> list[float]:
    """The figure of each seed, in their order."""
    known = "tagger" if policy in (*WITHOUT_FORECASTS, IN_ORDER) else knows
    found = by_seed(page["rows"], figure, family=family, policy=policy, knows=known)
    return [max(1e-6, value) for value in found]
