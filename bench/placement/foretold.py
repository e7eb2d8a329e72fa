"""How far off is what the scheduler foretells of answers whose lengths nobody knows?

Four real vLLM engines on the CPU, whose steps last as long as a GPU profile says, at 70% of what
they could serve. Tagger, predictors and scheduler are those that are deployed, and each prediction
is compared with what the scheduler then saw. Once nobody knows how long answers will be, and once
the requests say it.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.paced.engines import PROFILE, SLOWDOWN
from bench.placement.paced.requests import read_conversations
from bench.placement.paced.runs import CACHED, REFERENCE, Kept, Run
from bench.placement.paced.settings import SETTINGS
from bench.placement.vllm_cluster import Plan, run_setting
from bench.report import ROOT, Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.stats import percentile
from foretell.tools.live.report import FORETELL, LATENCIES

__all__ = ["BENCH", "arguments", "best_simple", "measure", "summary", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="4 minutes a seed",
    needs="`make setup-vllm`, the model of `make run-vllm`, two idle cores",
    packages=("foretell", "numpy", "grpcio"),
)
_LOAD = 0.7
_ALIKE = replace(SETTINGS["alike"], utilisation=_LOAD)
_TURNS = replace(SETTINGS["turns"], utilisation=_LOAD, hinted=True, own_answers=True)
_KINDS = (
    replace(_ALIKE, name="hidden", what="nobody knows the lengths of answers"),
    replace(_ALIKE, name="hinted", what="requests say the lengths of answers", hinted=True),
    replace(_TURNS, what="conversations turn by turn, which say the lengths of answers"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    help_text = "ShareGPT turns that the tagger has not seen; without, turns of random words."
    parser.add_argument("--prompts", type=Path, metavar="TURNS.jsonl.gz", help=help_text)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=90, help="That count, of each run.")
    parser.add_argument("--quick", action="store_true", help="One short run each; writes nothing.")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-vllm/bin/python")
    parser.add_argument("--model", type=Path, default=ROOT / ".models/tiny-llama")


def measure(options: argparse.Namespace) -> Numbers:
    """Make the runs that are missing, and sum up all."""
    if options.quick:
        options.write, options.seeds, options.requests = False, 1, 15
    kept = Kept(None if options.quick else BENCH.kept)
    conversations = read_conversations(options.prompts)
    plan = Plan(conversations, options.requests, options.seeds, options.python, options.model)
    kinds = {}
    for setting in _KINDS:
        asyncio.run(run_setting(plan, setting, kept, [REFERENCE]))
        runs = kept.complete(setting.name, [REFERENCE])[REFERENCE]
        kinds[setting.name] = {"what": setting.what, **summary(runs)}
    return {
        "profile": PROFILE,
        "slowdown": SLOWDOWN,
        "load": _LOAD,
        "kinds": kinds,
    }


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """What the runs of all seeds come to, as JSON."""
    return {
        "seeds": len(runs),
        "step_lateness": max(run.step_lateness for run in runs),
        "cores_busy": fmean(run.cores_busy for run in runs),
        "degraded": sum(sum(run.degraded.values()) for run in runs),
        "errors": {kind: _errors(runs, kind) for kind in LATENCIES},
        "cached": _cached(runs),
    }


def _cached(runs: Sequence[Run]) -> dict[str, float]:
    """Prompt tokens that were found cached, foretold and actual, of all requests."""
    pairs = [pair for run in runs for pair in run.foretold.get(CACHED, {}).get(FORETELL, [])]
    return {
        "foretold": sum(told for told, _ in pairs),
        "found": sum(found for _, found in pairs),
        "misjudged": sum(abs(told - found) for told, found in pairs),
        "requests": len(pairs),
    }


def _errors(runs: Sequence[Run], kind: str) -> dict[str, Any]:
    """|foretold - actual| / actual over all seeds, and the least and the most of each seed's."""
    found = {}
    for name in runs[0].foretold[kind]:
        seeds = [
            [abs(told_s - actual_s) / actual_s for told_s, actual_s in run.foretold[kind][name]]
            for run in runs
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


def best_simple(errors: dict[str, Any]) -> str:
    """The simple predictor whose median error is the least."""
    simple = (name for name in errors if name != FORETELL)
    return min(simple, key=lambda name: float(errors[name]["median"]))


def tables(page: Numbers) -> Blocks:
    """For each kind Foretell, and the simple predictor whose median is the least."""
    lines = [
        made_by(page),
        f"Four engines, whose steps last {page['slowdown']:g} times as long as `{page['profile']}` "
        f"says, at {page['load']:.0%} of what they could serve. In brackets, the least and the "
        "most of the seeds.\n",
    ]
    rows = []
    for name, one in page["kinds"].items():
        for kind, errors in one["errors"].items():
            both = FORETELL, best_simple(errors)
            rows += [_row(f"{name}: {kind}", each, errors[each]) for each in both]
    lines.append(markdown_table(("", "foretold by", "median", "P90", "requests"), rows))
    for name, one in page["kinds"].items():
        lines.append(
            f"*{name}*: {one['what']}; {one['seeds']} seeds; steps at most "
            f"{one['step_lateness']:.1%} late, {one['cores_busy']:.2f} cores busy, "
            f"{one['degraded']} placements degraded.\n"
        )
        if found := one["cached"]["found"]:
            lines.append(_of_cached(one["cached"], found))
    return {"tables": "\n".join(lines)}


def _of_cached(cached: dict[str, float], found: float) -> str:
    return (
        f"{cached['foretold'] / found:.1%} of the prompt tokens that engines found cached were "
        f"foretold; off by {cached['misjudged'] / found:.1%} in sum over {cached['requests']:.0f} "
        "requests.\n"
    )


def _row(what: str, name: str, errors: dict[str, Any]) -> tuple[str, ...]:
    cells = []
    for typical, seeds in (("median", "medians"), ("p90", "p90s")):
        least, most = errors[seeds]
        cells.append(f"{errors[typical]:.0%} ({least:.0%} to {most:.0%})")
    return what, f"`{name}`", *cells, str(errors["count"])
