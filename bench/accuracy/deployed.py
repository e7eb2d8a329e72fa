"""How far off are predictions and announced latencies, with lengths unknown and stated?

Four real vLLM engines on the CPU, whose steps last as long as a GPU profile says, at 70% of what
they could serve. Tagger, predictors and scheduler are as deployed, and each prediction is compared
with what the scheduler then observed. The lengths of answers are unknown, or stated by requests.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from time import time
from typing import Any

from bench.paced import cluster
from bench.paced.engines import SLOWDOWN
from bench.paced.pace import PROFILE
from bench.paced.runs import ANNOUNCED, CACHED, Run
from bench.paced.settings import SETTINGS
from bench.report import Benchmark, Blocks, Numbers, made_by
from bench.runs import Kept
from foretell.tools.intervals import percentile
from foretell.tools.live.report import FORETELL, LATENCIES
from foretell.tools.markdown import markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="4 minutes a seed",
    needs="`make setup-vllm`, the model of `make run-vllm`, two idle cores",
    packages=("foretell", "numpy", "grpcio"),
)
_POLICY, _LOAD = "slo", 0.7
_ALIKE = replace(SETTINGS["alike"], utilisation=_LOAD)
_TURNS = replace(SETTINGS["turns"], utilisation=_LOAD, hinted=True, own_answers=True)
_KINDS = (
    replace(_ALIKE, name="hidden", what="nobody knows the lengths of answers"),
    replace(_ALIKE, name="hinted", what="requests say the lengths of answers", hinted=True),
    replace(_TURNS, what="conversations turn by turn, which say the lengths of answers"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    cluster.arguments(parser, rounds=5)
    names = [setting.name for setting in _KINDS]
    parser.add_argument("--kinds", nargs="+", choices=names, default=names)


def measure(options: argparse.Namespace) -> Numbers:
    """Make the missing runs, and summarize all."""
    plan = cluster.Plan.of(options, [_POLICY])
    kept = Kept(BENCH.kept, f"quick {time()}" if options.quick else "")
    kinds = {
        setting.name: {
            "what": setting.what,
            **summary(cluster.runs_of(plan, setting, kept)[_POLICY]),
        }
        for setting in _KINDS
        if setting.name in options.kinds
    }
    return {"profile": PROFILE, "slowdown": SLOWDOWN, "load": _LOAD, "kinds": kinds}


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """The figures over the runs of all seeds, as JSON."""
    return {
        "seeds": len(runs),
        "step_lateness": max(run.step_lateness for run in runs),
        "cores_busy": fmean(run.cores_busy for run in runs),
        "degraded": sum(sum(run.degraded.values()) for run in runs),
        "errors": {kind: _errors(runs, kind) for kind in LATENCIES},
        "kept": {kind: _kept(runs, kind) for kind in LATENCIES},
        "cached": _cached(runs),
    }


def _kept(runs: Sequence[Run], kind: str) -> list[float]:
    """Shares of answers within the announced P90: over all seeds, and the least and the largest of
    single seeds."""
    seeds = [run.kept(kind) for run in runs]
    shares = [fmean(kept) for kept in seeds]
    return [fmean(each for kept in seeds for each in kept), min(shares), max(shares)]


def _cached(runs: Sequence[Run]) -> dict[str, float]:
    """Sums over all requests of prompt tokens found cached: predicted, actual, and the error."""
    pairs = [pair for run in runs for pair in run.predicted.get(CACHED, {}).get(FORETELL, [])]
    return {
        "predicted": sum(tokens for tokens, _ in pairs),
        "found": sum(found for _, found in pairs),
        "misjudged": sum(abs(predicted - found) for predicted, found in pairs),
        "requests": len(pairs),
    }


def _errors(runs: Sequence[Run], kind: str) -> dict[str, Any]:
    """Median and P90 of |predicted - actual| / actual over all seeds, and their range by seed."""
    found = {}
    columns = [run.columns(kind) for run in runs]
    for name in columns[0]:
        seeds = [
            [abs(p_s - actual_s) / actual_s for p_s, actual_s in column[name]] for column in columns
        ]
        together = [error for errors in seeds for error in errors]
        medians = [median(errors) for errors in seeds]
        tails = [percentile(errors, 90) for errors in seeds]
        found[name] = {
            "median": median(together),
            "p90": percentile(together, 90),
            "medians": [min(medians), max(medians)],
            "p90s": [min(tails), max(tails)],
            "count": len(together),
        }
    return found


def tables(page: Numbers) -> Blocks:
    """Median and P90 of both latencies' errors, by predictor and by what is known of lengths."""
    kinds = page["kinds"]
    lines = [
        made_by(page),
        f"Four engines, whose steps last {page['slowdown']:g} times as long as `{page['profile']}` "
        f"says, at {page['load']:.0%} of what they could serve. "
        + " ".join(
            f"*{name}*: {one['what']} ({one['seeds']} seeds, "
            f"{one['errors']['e2e'][FORETELL]['count']} requests)."
            for name, one in kinds.items()
        )
        + " Errors are |predicted - actual| / actual, median / P90 over all seeds.\n",
    ]
    names = next(iter(kinds.values()))["errors"]["e2e"]
    rows = [
        [
            f"`{name}`",
            *(_cell(one["errors"][kind][name]) for one in kinds.values() for kind in LATENCIES),
        ]
        for name in names
    ]
    header = [f"{name}: {kind.replace('ttft', 'TTFT')}" for name in kinds for kind in LATENCIES]
    lines.append(markdown_table(("predicted by", *header), rows))
    for name in (FORETELL, ANNOUNCED) if "hidden" in kinds else ():
        spread = kinds["hidden"]["errors"]["e2e"][name]
        medians, tails = (" to ".join(f"{x:.0%}" for x in spread[k]) for k in ("medians", "p90s"))
        lines.append(f"Of single seeds, *hidden*, e2e, `{name}`: medians {medians}, P90 {tails}.\n")
    lines += [_of_kept(name, one) for name, one in kinds.items()]
    lines += [
        _of_cached(name, one["cached"]) for name, one in kinds.items() if one["cached"]["found"]
    ]
    return {"tables": "\n".join(lines)}


def _cell(errors: dict[str, Any]) -> str:
    return f"{errors['median']:.0%} / {errors['p90']:.0%}"


def _of_kept(name: str, one: dict[str, Any]) -> str:
    shares = [
        f"{kind.replace('ttft', 'TTFT')} {share:.1%} (seeds: {least:.1%} to {most:.1%})"
        for kind, (share, least, most) in one["kept"].items()
    ]
    count = one["errors"]["e2e"][ANNOUNCED]["count"]
    return f"Kept to the announced P90, *{name}*, of {count}: {', '.join(shares)}.\n"


def _of_cached(name: str, cached: dict[str, float]) -> str:
    found = cached["found"]
    return (
        f"*{name}*: {cached['predicted'] / found:.1%} of the {found:,.0f} prompt tokens that "
        f"engines found cached were predicted; off by {cached['misjudged'] / found:.1%} in sum "
        f"over {cached['requests']:.0f} requests.\n"
    )
