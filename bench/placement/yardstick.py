"""Which policy serves which kind of traffic best, with lengths as the tagger would say?

TRACES holds the traces of `bench/placement/families.py`. A family's capacity is the highest rate at
which Block's policy, `predicted_latency`, with true lengths keeps the P99 of TTFT within a bound
(found by simulation with a separate seed); its load is a part of that. Predictors see their engines
ten times a second, and messages take as long as in a cluster.
Finished runs are kept in build/, so that an interrupted run resumes while the code is the same.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench.placement.bound import pooled
from bench.placement.families import DECIDES, FAMILIES, MIXED, UNSEEN, Family
from bench.placement.prefix_baselines import LongestMatch, PrefixHash
from bench.placement.simulated import by_seed, capacity_qps, figures, merged, simulated
from bench.report import Benchmark, Blocks, Numbers, made_by
from bench.runs import Kept, state_of_the_code
from foretell.policy import Policy
from foretell.tools.intervals import geometric_mean, ratio_interval
from foretell.tools.markdown import markdown_table
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
"""Policies of gateways for prompts with common prefixes; run only for families with prefixes."""
WITHOUT_FORECASTS = ("llumnix_minus", "least_outstanding", "round_robin", *SEE_PREFIXES)
POOL = "pool"
"""Not a policy, but a bound on what placement can gain (`bench.placement.bound`)."""
POLICIES = (OURS, BLOCK, *WITHOUT_FORECASTS)
SECONDS, MOST_REQUESTS, SEEDS = 100.0, 12_000, 5
LOOKED_AT = 2
"""Seeds of mixed clusters that may guide changes of a policy; later ones only report."""
BOUND_S, BOUND_TIMES, CLOSE = 3.0, 3.0, 1.04
"""The bound on the P99 of TTFT: the larger of a time and a multiple of that at low load; and the
factor within which the rate that reaches it is found."""
PUBLISH_S, NETWORK_S, DISPATCH_S = 0.1, 0.001, 0.005
_GROUPS = ((BLOCK,), WITHOUT_FORECASTS)
"""The rivals of the table: the best of each group counts."""
_ROWS = {
    "of one kind": (DECIDES, UNSEEN),
    "unseen": (UNSEEN,),
    "mixed": (MIXED,),
    "all": (DECIDES, UNSEEN, MIXED),
}
"""The roles of the families of each row of ratios to the strongest rival."""
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
    if case.policy == POOL:
        return {**asdict(case), **figures(pooled(options, arrivals, case.seed))}
    report = simulated(
        options,
        arrivals,
        case.seed,
        policy=_own(case.policy, family),
    )
    return {**asdict(case), **figures(report)}


def _own(policy: str, family: Family) -> Policy | None:
    """The benchmark's own policy of this name; None if it is the product's."""
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
    factor of `close`. The bound follows from Block's policy with true lengths at low load."""

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
    parser.add_argument("--first-seed", type=int, default=1, help="Leave out those before.")
    parser.add_argument("--families", nargs="+", choices=names, default=names)
    policies = (*POLICIES, POOL)
    parser.add_argument("--policies", nargs="+", choices=policies, default=policies)


def measure(options: argparse.Namespace) -> Numbers:
    """Simulate the requested cases that are missing; other rows stay as they were last written.

    A family's capacity is found only once, so that its rows of several days can be compared.
    """
    kept, last, seconds = Kept(BENCH.kept, state_of_the_code()), BENCH.read(), 0.0
    capacities = last["capacities_qps"]
    if options.quick:
        options.seeds, options.families, seconds = 2, options.families[:1], 5.0
        last = {"rows": []}
    else:
        new = [name for name in options.families if name not in capacities]
        find = partial(_capacity, traces=options.traces)
        found = kept.all_of(find, new, options.processes, "capacities")
        capacities |= zip(new, found, strict=True)
    asked = [
        Case(family.name, policy, "tagger", rate, seed, seconds or family.seconds)
        for seed in range(options.first_seed, options.seeds + 1)
        for family in map(family_of, options.families)
        for qps in [capacities.get(family.name, family.guess_qps)]
        for rate in [round(family.load * qps, 3)]
        for policy in options.policies
        if family.prefixes or policy not in SEE_PREFIXES
        if family.role != MIXED or seed > LOOKED_AT
    ]
    rows = kept.all_of(partial(run, traces=options.traces), asked, options.processes, "runs")
    return {"capacities_qps": capacities, "rows": merged(last["rows"], rows)}


def _capacity(name: str, traces: Path) -> float:
    return capacity(family_of(name), traces)


def family_of(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def tables(page: Numbers) -> Blocks:
    """Paired ratios to Block's policy, and to the best one without forecasts, family by family."""
    text = (
        "*Laboratory*: simulated; each family at its part of its capacity, lengths as the tagger "
        "says. Ratios of `slo`'s figures to those of the other policy with the same requests, seed "
        "by seed: geometric means with 95% intervals (Student's t). *Simple* is the best policy "
        "without forecasts: that with the lowest geometric mean of the figure; its name is that "
        "for P99 TTFT.\n"
    )
    rows, groups = [], []
    for role in (DECIDES, UNSEEN, MIXED):
        families = [family for family in _families(page) if family.role == role]
        for family in families:
            qps = page["capacities_qps"][family.name] * family.load
            simple = best_of(page, family.name, "ttft_p99_s", WITHOUT_FORECASTS)
            cells = [_told(ratios) for ratios in _beside(page, family.name, *_GROUPS)]
            rows.append(
                [f"{family.name}, {qps:.1f}/s", role, *cells[:3], f"`{simple}`", *cells[3:]]
            )
        found = list(zip(*(_beside(page, each.name, *_GROUPS) for each in families), strict=True))
        seeds = [map(geometric_mean, zip(*each, strict=True)) for each in found]
        cells = [f"**{_told([*ratios])}**" for ratios in seeds]
        if families:
            groups.append([f"**{len(families)}**", role, *cells[:3], "", *cells[3:]])
    names = [*COMPARED.values()]
    header = ("family", "role", *(f"Block: {name}" for name in names), "simple", *names)
    table = markdown_table(header, [*rows, *groups])
    return {"tables": "\n".join([made_by(page), text, table, *_strongest(page), *_shares(page)])}


def _told(ratios: Sequence[float]) -> str:
    """The ratios' geometric mean with its interval; for one seed only the ratio."""
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}"
    return "{:.2f} ({:.2f} to {:.2f})".format(*ratio_interval(ratios))


def _shares(page: Numbers) -> list[str]:
    """The share of the way from `round_robin` to the pool that each policy covers."""
    rows, figure = [], "ttft_p99_s"
    for family in _families(page):
        of_it = [row for row in page["rows"] if row["family"] == family.name]
        seeds = {row["seed"] for row in of_it if row["policy"] == POOL}
        if seeds:
            found = {**page, "rows": [row for row in of_it if row["seed"] in seeds]}
            simple = best_of(found, family.name, figure, WITHOUT_FORECASTS)
            start, end, *each = (
                geometric_mean(_values(found, family.name, policy, figure))
                for policy in ("round_robin", POOL, OURS, BLOCK, simple)
            )
            ways = [f"{(start - x) / (start - end):.0%}" for x in each]
            rows.append([family.name, f"{start:.3g} s", f"{end:.3g} s", *ways])
    header = (COMPARED[figure], "`round_robin`", POOL, f"`{OURS}`", f"`{BLOCK}`", "best simple")
    text = (
        "The way from `round_robin` to one *pool* of all engines (`bench/placement/bound.py`), and "
        "how much of it each goes: geometric means over seeds."
    )
    return [text, "", markdown_table(header, rows)]


def _strongest(page: Numbers) -> list[str]:
    """Ratios to each family's strongest rival, whatever it is, and the largest of each row."""
    rows = []
    for name, roles in _ROWS.items():
        found = {
            family.name: _beside(page, family.name, (BLOCK, *WITHOUT_FORECASTS))
            for family in _families(page)
            if family.role in roles
        }
        cells = []
        for column in range(len(COMPARED) if found else 0):
            ratios = {each: geometric_mean(seeds[column]) for each, seeds in found.items()}
            worst = max(ratios, key=lambda each: ratios[each])
            mean = geometric_mean([*ratios.values()])
            cells.append(f"{mean:.3f}; at most {ratios[worst]:.3f} (*{worst}*)")
        if found:
            rows.append([f"{name}, {len(found)}", *cells])
    text = (
        "Ratios of `slo`'s figures to those of each family's *strongest* rival, Block's policy "
        "included: geometric means over families, and the largest."
    )
    return ["", text, "", markdown_table(("families", *COMPARED.values()), rows), ""]


def _beside(page: Numbers, family: str, *groups: Sequence[str]) -> list[list[float]]:
    """The ratios of each of `COMPARED`, seed by seed, to the best rival of each group."""
    return [
        [
            own / theirs
            for own, theirs in zip(
                _values(page, family, OURS, figure),
                _values(page, family, best_of(page, family, figure, rivals), figure),
                strict=True,
            )
        ]
        for rivals in groups
        for figure in COMPARED
    ]


def best_of(page: Numbers, family: str, figure: str, rivals: Sequence[str]) -> str:
    """The rival with the lowest geometric mean of this figure."""
    ran = {row["policy"] for row in page["rows"] if row["family"] == family}
    return min(
        (each for each in rivals if each in ran),
        key=lambda each: geometric_mean(_values(page, family, each, figure)),
    )


def _families(page: Numbers) -> Iterable[Family]:
    return [family for family in FAMILIES if family.name in page["capacities_qps"]]


def _values(page: Numbers, family: str, policy: str, figure: str) -> list[float]:
    """The figure of each seed, in their order."""
    found = by_seed(page["rows"], figure, family=family, policy=policy)
    return [max(1e-6, value) for value in found]
