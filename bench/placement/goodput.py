"""How many requests keep their targets, where these are of two or three classes?

A third of the engines of families of `bench.placement.yardstick`; the load is a part of a third of
the family's capacity. Each request has a random class. Only `slo` knows the targets; by the other
policies the same requests are judged by the same targets.
Finished runs are kept in build/ while the code is the same.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean

from bench.placement.simulated import by_seed, figures, merged, simulated
from bench.placement.yardstick import BENCH as YARDSTICK
from bench.placement.yardstick import BLOCK, DISPATCH_S, NETWORK_S, OURS, PUBLISH_S, family_of
from bench.report import Benchmark, Blocks, Numbers, made_by
from bench.runs import Kept, state_of_the_code
from foretell.model import NO_SLO, Slo
from foretell.tools.intervals import geometric_mean, ratio_interval
from foretell.tools.markdown import markdown_table
from foretell.tools.simulate.options import SimulateOptions

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="15 minutes",
    paths={"TRACES": "folder of the traces"},
    processes=1,
)
RIVALS = (BLOCK, "llumnix_minus", "least_outstanding")
NAMES = ("chat", "bursts", "tides", "code", "unlike")
SECONDS, SEEDS, LOADS, PART = 90.0, 5, (0.9, 1.05), 3
"""One in `PART` of a family's engines is simulated."""
CLASSES = (Slo(0.5, 0.05), Slo(5.0), Slo(30.0))
"""Interactive, relaxed, and background requests. Only the first have a TPOT target."""
CODE = Slo(1.0, 0.1)
"""The interactive class of *code*, where steps compute more of prompts than of answers."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    family: str
    policy: str
    load: float
    classes: int
    seed: int
    seconds: float = SECONDS


def run(case: Case, traces: Path, capacities_qps: dict[str, float]) -> Numbers:
    """Shares of requests within their targets, of all and by class, and the figures of latency."""
    family = family_of(case.family)
    engines = [replace(each, instances=each.instances // PART) for each in family.engines]
    options = SimulateOptions(
        engines=tuple(engines),
        policy=case.policy,
        estimates="tagger",
        publish_interval_s=PUBLISH_S,
        network_delay_s=NETWORK_S,
        dispatch_delay_s=DISPATCH_S,
    )
    qps = case.load * capacities_qps[case.family] / PART
    arrivals = family.arrivals(traces, qps, int(qps * case.seconds), case.seed)
    draws = Random(f"{case.seed} classes")
    of = {a.request_id: int(case.classes * draws.random()) for a in arrivals}
    with_targets = case.policy == OURS
    targets = [CODE if case.family == "code" else CLASSES[0], *CLASSES[1 : case.classes]]
    coming = [
        replace(a, slo=targets[of[a.request_id]] if with_targets else NO_SLO) for a in arrivals
    ]
    report = simulated(options, coming, case.seed)
    good = [0] * case.classes
    for served in report.served:
        number = of[served.request_id]
        good[number] += targets[number].met(served.ttft_s, served.tpot_s)
    came = [[*of.values()].count(number) for number in range(case.classes)]
    shares = {f"good_{number}": good[number] / came[number] for number in range(case.classes)}
    return {**asdict(case), "good": sum(good) / len(of), **shares, **figures(report)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=SEEDS, help="Number of seeds, 2 to 10.")
    parser.add_argument("--families", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--loads", nargs="+", type=float, default=LOADS)
    parser.add_argument("--classes", nargs="+", type=int, choices=(2, 3), default=(2, 3))
    policies = (OURS, *RIVALS)
    parser.add_argument("--policies", nargs="+", choices=policies, default=policies)


def measure(options: argparse.Namespace) -> Numbers:
    """Simulate what is asked for and was not simulated yet; the rest stays as it was written."""
    seconds, last = SECONDS, [] if options.quick else BENCH.read()["rows"]
    if options.quick:
        options.seeds, options.families, options.loads, seconds = 2, NAMES[:1], LOADS[-1:], 10.0
    asked = [
        Case(family, policy, load, classes, seed, seconds)
        for load, classes, seed, family, policy in product(
            options.loads,
            options.classes,
            range(1, options.seeds + 1),
            options.families,
            options.policies,
        )
    ]
    work = partial(run, traces=options.traces, capacities_qps=YARDSTICK.read()["capacities_qps"])
    kept = Kept(BENCH.kept, state_of_the_code())
    rows = kept.all_of(work, asked, options.processes, "runs")
    return {"rows": merged(last, rows, ("family", "policy", "load", "classes", "seed"))}


def tables(numbers: Numbers) -> Blocks:
    """Shares in time, and their ratios to those of the strongest rival."""
    rows = numbers["rows"]
    text = (
        "*Laboratory*: simulated, lengths as the tagger says. *In time*: requests within their "
        "targets, means over seeds, and in brackets by class. *Ratio*: of these to those of the "
        "strongest rival (the one with the highest mean), seed by seed: geometric mean with its "
        "95% interval (Student's t). TTFT and e2e: the mean latencies and P99 TTFT over those of "
        "that rival.\n"
    )
    header = ("family, load, classes", "seeds", "`slo` in time", "strongest rival", "ratio")
    settings = list(dict.fromkeys((row["family"], row["load"], row["classes"]) for row in rows))
    lines = [_line(rows, each) for each in settings]
    for load, classes in dict.fromkeys(each[1:] for each in settings):
        same = [each for each in settings if each[1:] == (load, classes)]
        means = [geometric_mean([_ratio(rows, each, name) for each in same]) for name in _SHOWN]
        lines.append(
            [f"geometric mean, {load:g}, {classes}", "", "", "", *map("{:.2f}".format, means)]
        )
    table = markdown_table((*header, "mean TTFT", "P99 TTFT", "mean e2e"), lines)
    return {"tables": "\n".join([made_by(numbers), text, table])}


_SHOWN = ("good", "ttft_mean_s", "ttft_p99_s", "e2e_mean_s")
Setting = tuple[str, float, int]
"""Family, load, classes."""


def _values(rows: Sequence[Numbers], setting: Setting, policy: str, figure: str) -> list[float]:
    family, load, classes = setting
    return by_seed(rows, figure, policy=policy, family=family, load=load, classes=classes)


def _rival(rows: Sequence[Numbers], setting: Setting) -> str:
    return max(RIVALS, key=lambda policy: sum(_values(rows, setting, policy, "good")))


def _ratios(rows: Sequence[Numbers], setting: Setting, figure: str) -> list[float]:
    """Ratios of `slo`'s figure to that of the strongest rival, by seed."""
    rival = _values(rows, setting, _rival(rows, setting), figure)
    return [a / b for a, b in zip(_values(rows, setting, OURS, figure), rival, strict=True)]


def _ratio(rows: Sequence[Numbers], setting: Setting, figure: str) -> float:
    return geometric_mean(_ratios(rows, setting, figure))


def _line(rows: Sequence[Numbers], setting: Setting) -> list[str]:
    family, load, classes = setting

    def in_time(policy: str) -> str:
        names = ("good", *(f"good_{number}" for number in range(classes)))
        mean, *each = (fmean(_values(rows, setting, policy, name)) for name in names)
        return f"{mean:.1%} ({', '.join(f'{share:.0%}' for share in each)})"

    good, rival = _ratios(rows, setting, "good"), _rival(rows, setting)
    return [
        f"{family}, {load:g}, {classes}",
        f"{len(good)}",
        in_time(OURS),
        f"`{rival}`: {in_time(rival)}",
        "{:.2f} ({:.2f} to {:.2f})".format(*ratio_interval(good)),
        *(f"{_ratio(rows, setting, figure):.2f}" for figure in _SHOWN[1:]),
    ]
