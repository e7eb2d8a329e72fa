"""Does the default policy beat simple ones on real vLLM engines whose answers have unknown lengths?

Four real vLLM engines on the CPU, whose steps last as long as a GPU profile says, in five settings.
Their API servers, schedulers and KV caches are vLLM's own, only the engines know the answers'
lengths, and tagger, predictors and scheduler are as deployed. Policies take turns on the same
requests, in another order each round.
"""

import argparse
from collections.abc import Iterable, Sequence
from statistics import fmean
from time import time
from typing import Any

from bench.paced import cluster
from bench.paced.engines import SLOWDOWN
from bench.paced.pace import PROFILE
from bench.paced.runs import ANNOUNCED, METRICS, Run
from bench.paced.settings import SETTINGS, UTILISATION
from bench.report import Benchmark, Blocks, Numbers, made_by
from bench.runs import Kept
from foretell.tools.intervals import interval, percentile
from foretell.tools.live.report import FORETELL, LATENCIES
from foretell.tools.markdown import markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes a round and setting",
    needs="`make setup-vllm`, the model of `make run-vllm`, two idle cores",
    packages=("foretell", "numpy", "grpcio"),
)
REFERENCE = "slo"
POLICIES = (
    REFERENCE,
    cluster.OBSERVED,
    "predicted_latency",
    "least_outstanding",
    "llumnix_minus",
    "round_robin",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    cluster.arguments(parser, rounds=8)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)


def measure(options: argparse.Namespace) -> Numbers:
    """Make the missing runs, and summarize all."""
    plan = cluster.Plan.of(options, options.policies)
    kept = Kept(BENCH.kept, f"quick {time()}" if options.quick else "")
    settings = {}
    for name in options.settings:
        runs = cluster.runs_of(plan, SETTINGS[name], kept)
        settings[name] = {"what": SETTINGS[name].what, **summary(runs)}
    facts = {"profile": PROFILE, "slowdown": SLOWDOWN, "utilisation": UTILISATION}
    return {**facts, "settings": settings}


def summary(found: dict[str, list[Run]]) -> dict[str, Any]:
    """The figures of a setting, as JSON."""
    reference = found[REFERENCE]
    return {
        "rounds": len(reference),
        "policies": {policy: _of_policy(runs, reference) for policy, runs in found.items() if runs},
    }


def _of_policy(runs: Sequence[Run], reference: Sequence[Run]) -> dict[str, Any]:
    """Means over rounds; differences are the policy less the reference, paired by round."""
    figures, others = [_figures(run) for run in runs], [_figures(run) for run in reference]
    differences = {}
    for metric in figures[0]:
        each = [own[metric] - other[metric] for own, other in zip(figures, others, strict=True)]
        mean, half = interval(each) if len(each) > 1 else (fmean(each), None)
        differences[metric] = {"mean": mean, "half_width": half}
    within = [one for run in runs for one in run.within]
    return {
        **{metric: fmean(one[metric] for one in figures) for metric in METRICS},
        "less_reference": differences,
        "within": fmean(within) if within else None,
        "bubbles": fmean(run.bubbles for run in runs),
        "step_lateness": max(run.step_lateness for run in runs),
        "kept": {kind: _share(run.kept(kind) for run in runs) for kind in LATENCIES},
        "errors": {kind: _errors(runs, kind) for kind in LATENCIES},
    }


def _figures(run: Run) -> dict[str, float]:
    """`METRICS`, and the share of requests within their targets, in percent."""
    return run.figures() | ({"within": 100.0 * fmean(run.within)} if run.within else {})


def _share(kept: Iterable[list[bool]]) -> float | None:
    every = [each for one in kept for each in one]
    return fmean(every) if every else None


def _errors(runs: Sequence[Run], kind: str) -> dict[str, list[float]]:
    """Median and P90 of |predicted - actual| / actual by predictor, over all rounds."""
    found: dict[str, list[float]] = {}
    columns = [run.columns(kind) for run in runs]
    for name in {name for column in columns for name in column}:
        if pairs := [pair for column in columns for pair in column[name]]:
            off = [abs(predicted_s / actual_s - 1.0) for predicted_s, actual_s in pairs]
            found[name] = [percentile(off, 50), percentile(off, 90)]
    return found


def tables(page: Numbers) -> Blocks:
    """A row for each policy in each setting, with the difference to the default."""
    rows = []
    for name, setting in page["settings"].items():
        for policy in sorted(setting["policies"], key=POLICIES.index):
            one = setting["policies"][policy]
            cells = [_cell(one, metric, policy == REFERENCE) for metric in METRICS]
            within = _within(one, policy == REFERENCE)
            rows.append([f"{name}: `{policy}`", *cells, within, f"{one['bubbles']:.1%}"])
    off = [
        [f"{name}: `{policy}`", *_off(setting["policies"][policy])]
        for name, setting in page["settings"].items()
        for policy in (REFERENCE, cluster.OBSERVED)
        if "errors" in setting["policies"].get(policy, ())
    ]
    settings = "; ".join(
        f"*{name}*, {one['rounds']} rounds: {one['what']}" for name, one in page["settings"].items()
    )
    text = (
        f"Steps last {page['slowdown']:g} times as long as `{page['profile']}` says; the rate is "
        f"{page['utilisation']:.0%} of what full engines could serve. {settings}.\n\nSeconds of "
        "the clock, means over rounds, each with a seed; in brackets the policy's less `slo`'s, "
        "paired by round, with 95% intervals (Student's t); for those within targets in points of "
        "a percentage. Bubbles: time of engines without work while a request waits at any, as a "
        "ratio of the time of all steps.\n"
    )
    header = ("setting: policy", *METRICS.values(), "within targets", "bubbles")
    predictions = (
        "\nHow far predictions were off, median / P90 of |predicted - actual| / actual; in "
        "brackets the simple predictor with the least median, of the same requests. Announced: how "
        "far off clients' values were, and how many answers kept to the announced P90.\n"
    )
    parts = [made_by(page), text, markdown_table(header, rows)]
    if off:
        names = ("TTFT", "e2e", "announced TTFT", "announced e2e")
        parts += [predictions, markdown_table(("setting: policy", *names), off)]
    return {"tables": "\n".join(parts)}


def _off(one: dict[str, Any]) -> list[str]:
    """Cells of predictions, and of announced latencies with the share within their P90."""
    predicted, announced = [], []
    for kind, errors in one["errors"].items():
        simple = {name: each for name, each in errors.items() if name not in (FORETELL, ANNOUNCED)}
        best = min(simple, key=lambda name: simple[name])
        predicted.append(f"{_off_by(errors[FORETELL])} (`{best}` {_off_by(simple[best])})")
        kept = one["kept"][kind]
        announced.append(f"{_off_by(errors[ANNOUNCED])}, {kept:.0%}" if ANNOUNCED in errors else "")
    return predicted + announced


def _off_by(errors: Sequence[float]) -> str:
    return f"{errors[0]:.0%} / {errors[1]:.0%}"


def _within(one: dict[str, Any], is_reference: bool) -> str:
    if one["within"] is None:
        return ""
    share = f"{one['within']:.0%}"
    return share if is_reference else f"{share} ({_less_reference(one, 'within', 1)})"


def _cell(one: dict[str, Any], metric: str, is_reference: bool) -> str:
    mean = f"{one[metric]:.2f}"
    return mean if is_reference else f"{mean} ({_less_reference(one, metric, 2)})"


def _less_reference(one: dict[str, Any], metric: str, digits: int) -> str:
    found = one["less_reference"][metric]
    half = "" if found["half_width"] is None else f" ± {found['half_width']:.{digits}f}"
    return f"{found['mean']:+.{digits}f}{half}"
