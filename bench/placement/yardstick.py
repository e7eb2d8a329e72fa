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

from bench.placement.deployed import FIGURES, Kept, by_seed, figures_of
from bench.placement.families import FAMILIES, Family
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.stats import geometric_mean, ratio_interval

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="40 minutes",
    paths={"TRACES": "folder of the traces"},
    processes=2,
)
BY_PRIORITY = ", by priority"
"""Behind the name of a policy: its engines admit by priority, the others' in order of arrival."""
OURS = ("slo", f"slo{BY_PRIORITY}")
PEERS = ("predicted_latency", "llumnix_minus", "least_outstanding")
"""The policies the best of which the default is compared with; Block's is the first."""
SIMPLE = ("llumnix_minus", "least_outstanding", "round_robin")
"""Those that ask no predictor for a forecast."""
POLICIES = (*OURS, *PEERS, SIMPLE[-1])
KNOWN = {"tagger": "as the tagger says", "true": "true lengths"}
SECONDS, MOST_REQUESTS, SEEDS = 100.0, 12_000, 5
BOUND_S, BOUND_TIMES, CLOSE = 3.0, 3.0, 1.04
"""The bound on the P99 of TTFT: so long, or so many times as long as without load; and how closely
the rate at which it is reached is found."""
COMPARED = {
    "ttft_mean_s": "mean TTFT",
    "ttft_p99_s": "P99 TTFT",
    "ttft_max_s": "longest TTFT",
    "e2e_mean_s": "mean e2e",
    "e2e_p99_s": "P99 e2e",
}


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
    arrivals = family.arrivals(traces, case.qps, count, case.seed)
    name = case.policy.removesuffix(BY_PRIORITY)
    found = figures_of(
        family.engines,
        arrivals,
        name,
        case.knows,
        case.seed,
        # Peers are what others offer: what they have placed stays.
        recall=name not in (*PEERS, *SIMPLE),
        by_priority=name != case.policy,
    )
    return {**asdict(case), **found}


def capacity(
    family: Family,
    traces: Path,
    *,
    policy: str = PEERS[0],
    knows: str = "true",
    seed: int = 0,
    close: float = CLOSE,
) -> float:
    """The highest rate at which a policy keeps the bound, in requests a second, found within a
    factor of `close`. The bound is that of Block's policy with true lengths."""
    block = Case(family.name, PEERS[0], "true", family.guess_qps / 10, 0, 4 * SECONDS)
    bound_s = max(BOUND_S, BOUND_TIMES * float(run(block, traces)["ttft_p99_s"]))
    low = high = None
    qps = family.guess_qps
    while low is None or high is None or high / low > close:
        case = Case(family.name, policy, knows, qps, seed)
        if float(run(case, traces)["ttft_p99_s"]) <= bound_s:
            low, qps = qps, 1.3 * qps if high is None else (qps + high) / 2
        else:
            high, qps = qps, qps / 1.3 if low is None else (low + qps) / 2
    return round(low, 3)


def arguments(parser: argparse.ArgumentParser) -> None:
    names = [family.name for family in FAMILIES]
    parser.add_argument("--seeds", type=int, default=SEEDS, help="Number of seeds, 2 to 10.")
    parser.add_argument(
        "--families", nargs="+", choices=names, default=names, help="Families to run."
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        default=list(POLICIES),
        choices=POLICIES,
        help="Policies to run.",
    )


def measure(options: argparse.Namespace) -> Numbers:
    """Find the families' capacities, and simulate what has not been simulated yet."""
    kept = Kept(BENCH.kept)
    find = partial(_capacity, traces=options.traces)
    found = kept.all_of(find, options.families, options.processes, "capacities")
    cases = [
        Case(family.name, policy, knows, round(family.load * qps, 3), seed)
        for seed in range(1, options.seeds + 1)
        for family, qps in zip(map(family_of, options.families), found, strict=True)
        for knows in KNOWN
        for policy in options.policies
        if knows == "tagger" or policy not in SIMPLE  # whom lengths do not concern
    ]
    rows = kept.all_of(partial(run, traces=options.traces), cases, options.processes, "runs")
    return {
        "capacities_qps": dict(zip(options.families, found, strict=True)),
        "policies": options.policies,
        "rows": rows,
    }


def _capacity(name: str, traces: Path) -> float:
    return capacity(family_of(name), traces)


def family_of(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def tables(page: Numbers) -> Blocks:
    """For each kind of knowledge, ratios to the best peer, family by family."""
    seeds = len({row["seed"] for row in page["rows"]})
    text = [
        made_by(page),
        f"Each family at 92% of its capacity (*unlike, calm* at 30%, *calm* at 50%), {SECONDS:g} s "
        f"of it for each of {seeds} seeds. Ratios of the figures of `slo` to those of the best of "
        "some others (the best in this figure and family, by its geometric mean over the seeds), "
        "with 95% intervals (Student's t over the seeds). Only `slo` calls requests back. "
        "*By priority*: its engines run with `--scheduling-policy priority`.\n",
    ]
    for knows, title in KNOWN.items():
        text += [
            f"### {title[0].upper()}{title[1:]}\n",
            *_ratios(page, knows),
            _absolute(page, knows),
        ]
    return {"tables": "\n".join(text)}


def _ratios(page: Numbers, knows: str) -> Iterable[str]:
    for peers in (PEERS, SIMPLE):
        names = [f"`{peer}`" for peer in peers if peer in page["policies"]]
        if not names:
            continue
        yield f"Beside the best of {', '.join(names)}:\n"
        for mine in OURS:
            if mine in page["policies"]:
                yield _ratios_to(page, knows, mine, peers)


def _ratios_to(page: Numbers, knows: str, mine: str, peers: Sequence[str]) -> str:
    lines = []
    means: dict[tuple[bool, str], list[float]] = {}
    for family in _families(page):
        cells = []
        for figure in COMPARED:
            mean, low, high = ratio_interval(
                ratios_of(page, family.name, knows, mine, peers, figure)
            )
            means.setdefault((family.decides, figure), []).append(mean)
            cells.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
        role = "decides" if family.decides else "reports"
        lines.append([f"{family.name}, *{role}*", *cells])
    for decides, title in ((True, "families that decide"), (False, "families that report")):
        known = [means.get((decides, figure)) for figure in COMPARED]
        if all(known):
            lines.append([f"**{title}**", *(f"**{geometric_mean(m or [1]):.2f}**" for m in known)])
    return markdown_table((f"`{mine}`", *COMPARED.values()), lines)


def ratios_of(
    page: Numbers, family: str, knows: str, mine: str, peers: Sequence[str], figure: str
) -> list[float]:
    """Seed by seed, to the peer that is best in this figure by its geometric mean."""
    known = [peer for peer in peers if peer in page["policies"]]
    best = min((_values(page, family, peer, knows, figure) for peer in known), key=geometric_mean)
    own = _values(page, family, mine, knows, figure)
    return [a / b for a, b in zip(own, best, strict=True)]


def _absolute(page: Numbers, knows: str) -> str:
    lines = []
    for family in _families(page):
        qps = page["capacities_qps"][family.name] * family.load
        for policy in page["policies"]:
            values = {f: _values(page, family.name, policy, knows, f) for f in FIGURES}
            if policy in SIMPLE and knows != "tagger":
                continue
            seconds = [f"{geometric_mean(values[f]):.2f} s" for f in FIGURES if f.endswith("_s")]
            preempted = sum(values["preemptions_per_1000"]) / len(values["ttft_mean_s"])
            name = f"{family.name}, {qps:.1f}/s" if policy == page["policies"][0] else ""
            lines.append([name, f"`{policy}`", *seconds, f"{preempted:.0f}"])
    header = ["family", "policy", "mean TTFT", "P99", "P99.9", "longest", "mean e2e", "P99 e2e"]
    return markdown_table([*header, "P99 TPOT", "preemptions per 1,000"], lines)


def _families(page: Numbers) -> Iterable[Family]:
    return [family for family in FAMILIES if family.name in page["capacities_qps"]]


def _values(page: Numbers, family: str, policy: str, knows: str, figure: str) -> list[float]:
    """The figure of each seed, in their order."""
    known = "tagger" if policy in SIMPLE else knows
    floor = 0.0 if figure == "preemptions_per_1000" else 1e-6
    found = by_seed(page["rows"], figure, family=family, policy=policy, knows=known)
    return [max(floor, value) for value in found]
