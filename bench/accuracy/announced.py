"""Do the latencies announced to clients hold, where nobody knows how long answers will be?

Prompts with known answers come to a simulated cluster of four engines, at 70% of what they could
serve. The shipped small model estimates their lengths and, once they are placed, the shipped
tagger, as if its answer always came before the first token. Both learn from an answer some requests
later, and announced latencies are calibrated as in the scheduler. The first half of each run is
only learnt from, and the second is scored.

In another variant half of the clients leave before their answers end, at times independent of the
answers. Such answers count as longer than that, or are not learnt from; all are scored.
"""

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import NamedTuple

from bench.report import Benchmark, Blocks, Numbers, made_by
from foretell.engine.announced import AnnouncedLatency, Calibration, ObservedLatency, with_length
from foretell.model import BatchShape, LengthEstimate
from foretell.policy import make_policy
from foretell.sim import ClusterConfig, ServedRequest, simulate
from foretell.tools.intervals import percentile
from foretell.tools.length.dataset import Example, read_examples
from foretell.tools.length.taggers import load_tagger
from foretell.tools.markdown import markdown_table
from foretell.tools.progress import side_by_side
from foretell.tools.simulate.cluster import cluster_config
from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.workload import Arrival

BENCH = Benchmark(__file__, __doc__, takes="4 minutes", processes=2)
_ENGINES = EngineOptions(
    "A30/Llama-2-7b-hf", 4, max_num_seqs=48, max_num_batched_tokens=512, num_blocks=1056,
    max_model_len=4096,
)  # fmt: skip
_MEAN_TO_LEAVE = 1.5
"""Mean time until a client would leave, in median e2e latencies."""
_LOAD, _MOST_TOKENS, _MOST_REQUESTS, _BEHIND = 0.7, 4000, 3000, 50
_LATENCIES: dict[str, Callable[[ServedRequest], float]] = {
    "ttft": lambda served: served.ttft_s,
    "e2e": lambda served: served.e2e_s,
}


class Scored(NamedTuple):
    """One request; seconds from its placement."""

    mean_s: float
    announced: AnnouncedLatency
    actual_s: float


def run(case: tuple[Path, int]) -> Numbers:
    """The figures of one file and seed."""
    path, seed = case
    examples = [
        e
        for e in read_examples(path)
        if e.conversation.prompt_tokens + e.output_tokens < _MOST_TOKENS
    ]
    first = Random(f"{seed} first").randrange(len(examples))
    examples = (examples[first:] + examples[:first])[:_MOST_REQUESTS]  # conversations stay whole
    options = SimulateOptions(
        engines=(_ENGINES,), estimates="told", network_delay_s=0.001, dispatch_delay_s=0.005
    )
    config = replace(cluster_config(options, seed, prefixes=False), foretell_every=1)
    arrivals, better = _arrivals(examples, config, Random(f"{seed} arrivals"))
    report = simulate(config, arrivals, [make_policy(options.policy)], Random(f"{seed} cluster"))
    placed = sorted(report.served, key=lambda each: each.placed_s)
    lengths = {arrival.request_id: arrival.length for arrival in arrivals}
    served = [_with_length(s, lengths[s.request_id], better[s.request_id]) for s in placed]
    usual_s, draws = median(each.e2e_s for each in served), Random(f"{seed} leaving")
    leaves_s = [draws.expovariate(1 / (_MEAN_TO_LEAVE * usual_s)) for _ in served]
    stay_s = [inf] * len(served)
    small, announced = _announced(placed, stay_s), _announced(served, stay_s)
    left, left_out = _announced(served, leaves_s), _announced(served, leaves_s, leave_out=True)
    figures = {
        kind: {
            **_figures(each),
            "mean": _figures(small[kind])["mean"],
            "small": _figures(small[kind])["announced"],
            "left": _kept(left[kind]),
            "left_out": _kept(left_out[kind]),
        }
        for kind, each in announced.items()
    }
    return {"file": path.name, "seed": seed, **figures}


def _with_length(
    served: ServedRequest, was: LengthEstimate | None, length: LengthEstimate
) -> ServedRequest:
    """The request as predicted with the estimate `length` in place of `was`."""
    if served.predicted is None or was is None:
        return served
    return replace(served, predicted=with_length(served.predicted, was, length))


def _arrivals(
    examples: Sequence[Example], config: ClusterConfig, draws: Random
) -> tuple[list[Arrival], dict[str, LengthEstimate]]:
    """Poisson arrivals with the small model's estimates, and by their ids the tagger's, each made
    when its prompt's turn comes."""
    engine = config.instances[0]
    output = fmean(e.output_tokens for e in examples)
    context = round(fmean(e.conversation.prompt_tokens for e in examples) + output / 2)
    seats = min(_ENGINES.max_num_seqs, _ENGINES.num_blocks * 16 // context)
    step_s = engine.step_time.step_s(BatchShape(decode_seqs=seats, decode_pairs=seats * context))
    per_s = _LOAD * len(config.instances) * seats / (output * step_s)
    small, tagger = load_tagger("shipped", small=True), load_tagger("shipped")
    arrivals, better, under_way, at_s = [], dict[str, LengthEstimate](), deque[Example](), 0.0
    for number, example in enumerate(examples):
        (length,), (better[str(number)],) = small.estimate([example]), tagger.estimate([example])
        under_way.append(example)
        if len(under_way) > _BEHIND:
            ended = under_way.popleft()
            small.observe(ended)
            tagger.observe(ended)
        at_s += draws.expovariate(per_s)
        prompt = example.conversation.prompt_tokens
        arrivals.append(Arrival(at_s, prompt, example.output_tokens, str(number), length=length))
    return arrivals, better


def _announced(
    requests: Sequence[ServedRequest], leaves_s: Sequence[float], *, leave_out: bool = False
) -> dict[str, list[Scored]]:
    """The latencies announced for each, by what had ended, or been left, when it was placed.
    `leave_out`: nothing is learnt from answers whose clients left."""
    calibration, found = Calibration(), {kind: list[Scored]() for kind in _LATENCIES}
    under_way: list[tuple[float, int]] = []
    for number, each in enumerate(requests):
        while under_way and under_way[0][0] <= each.placed_s:
            which = heappop(under_way)[1]
            ended, most_s = requests[which], leaves_s[which]
            ttft, e2e = (_seen(_since_placed(ended, kind), most_s) for kind in _LATENCIES)
            if ended.predicted is not None and (e2e.whole or not leave_out):
                calibration.observe("", ended.predicted, ttft, e2e)
        others = [
            (predicted, each.placed_s - requests[which].placed_s)
            for which in sorted(which for _, which in under_way)
            if (predicted := requests[which].predicted) is not None
        ]
        waited_s = min(_since_placed(each, "e2e"), leaves_s[number])
        heappush(under_way, (each.placed_s + waited_s, number))
        if each.predicted is None:
            continue
        if (announced := calibration.tell("", each.predicted, others.copy)) is not None:
            for kind, latency in announced._asdict().items():
                mean_s = getattr(each.predicted, f"{kind}_s")
                found[kind].append(Scored(mean_s, latency, _since_placed(each, kind)))
    return found


def _seen(latency_s: float, most_s: float) -> ObservedLatency:
    return ObservedLatency(min(latency_s, most_s), whole=latency_s <= most_s)


def _since_placed(served: ServedRequest, kind: str) -> float:
    return _LATENCIES[kind](served) - (served.placed_s - served.arrival_s)


def _kept(requests: list[Scored]) -> float:
    return fmean(s.actual_s <= s.announced.p90_s for s in requests[len(requests) // 2 :])


def _figures(requests: list[Scored]) -> Numbers:
    scored = requests[len(requests) // 2 :]
    later = [
        (s.announced.left(s.announced.median_s), s.actual_s - s.announced.median_s) for s in scored
    ]
    left = [(announced, actual_s) for announced, actual_s in later if actual_s > 0]
    return {
        "count": len(scored),
        "mean": _errors([(s.mean_s, s.actual_s) for s in scored]),
        "announced": _errors([(s.announced.typical_s, s.actual_s) for s in scored]),
        "median": _errors([(s.announced.median_s, s.actual_s) for s in scored]),
        "shorter": [
            fmean(s.actual_s <= s.announced.median_s for s in scored),
            fmean(s.actual_s <= s.announced.typical_s for s in scored),
        ],
        "kept": _kept(requests),
        "kept_left": fmean(actual_s <= announced.p90_s for announced, actual_s in left),
    }


def _errors(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """|predicted - actual| / actual: median and P90."""
    errors = [abs(predicted_s - actual_s) / actual_s for predicted_s, actual_s in pairs]
    return [median(errors), percentile(errors, 90)]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--answers", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=3)


def measure(options: argparse.Namespace) -> Numbers:
    """All files and seeds."""
    cases = [(path, seed) for path in options.answers for seed in range(1, options.seeds + 1)]
    return {
        "rows": list(
            side_by_side(run, cases[:1] if options.quick else cases, options.processes, "runs")
        )
    }


def tables(page: Numbers) -> Blocks:
    """Errors of the mean, the calibrated median and what clients get, the shares of answers that
    were shorter than the latter two, and the shares within the P90."""
    lines = []
    for name in dict.fromkeys(row["file"] for row in page["rows"]):
        for kind in _LATENCIES:
            rows = [row[kind] for row in page["rows"] if row["file"] == name]
            cells = [
                " / ".join(f"{fmean(row[by][at] for row in rows):.0%}" for at in (0, 1))
                for by in ("mean", "small", "median", "announced", "shorter")
            ]
            shares = [
                f"{min(row[by] for row in rows):.1%} to {max(row[by] for row in rows):.1%}"
                for by in ("kept", "kept_left", "left", "left_out")
            ]
            count = sum(row["count"] for row in rows)
            lines.append([f"`{name}`", kind.replace("ttft", "TTFT"), str(count), *cells, *shares])
    kept = ("kept to the P90", "to that revised at the median", "where half leave", "left out")
    errors = (
        "error of the mean",
        "announced without the tagger",
        "median",
        "announced",
        "shorter than these",
    )
    header = ("answers", "latency", "scored", *errors, *kept)
    return {"tables": "\n".join([made_by(page), markdown_table(header, lines)])}
