"""How well do a base model's lengths fit other serving models, once adapted to their answers?

DATA holds `text/` with prompts and answers. A small base model (`bench.length.base`) is trained on
one data set. Each of the others is then a stream: every request is predicted before its answer is
observed.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.length.base import Base, Floats, Ints, Stream, sharegpt, streams
from bench.length.methods import METHODS, Method, below_edges
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.length.adapt import Adapter
from foretell.length.bins import below_at, bin_of, quantiles

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes",
    paths={"DATA": "folder with text/"},
    packages=("foretell", "numpy"),
)
SEED = 1
_COVERED = (0.5, 0.8, 0.95)
_LEARNT, _LEARNT_OF_FEW, _FEW = 300, 100, 600  # requests before scores count, of streams of fewer
_LEAST = 1e-9
HEADER = ("log score", "MAE", "50% interval", "80% interval", "95% interval")


def predict(method: Method, stream: Stream, base: Floats, seen: Floats) -> Floats:
    """(n, `BINS`): each request's distribution from the answers before its own.

    `seen`: standardised features.
    """
    found = np.empty_like(base)
    for i, row in enumerate(base):
        found[i] = method.adjust(row, stream.groups[i], seen[i])
        tokens, censored = int(stream.tokens[i]), bool(stream.censored[i])
        method.observe(row, tokens, censored, stream.groups[i], seen[i])
    return found


def score(rows: Floats, stream: Stream) -> dict[str, float]:
    """Scores on the requests after the first `learnt`; errors and intervals of complete answers.

    `log_score`: mean log probability of the bin, or of no fewer tokens where an answer was cut.
    A last token that lies on an interval's end counts for the share of it that lies within.
    """
    counted = np.arange(len(stream)) >= learnt(stream)
    every, own = np.arange(len(stream)), bin_of(stream.tokens)
    reached = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1][every, own]
    likelihood = np.where(stream.censored, reached, rows[every, own])
    ended = counted & ~stream.censored
    actual = stream.tokens[ended]
    ends = np.array(
        [
            below_at(below_edges(row), np.array([tokens - 1.0, tokens]))
            for row, tokens in zip(rows[ended], actual, strict=True)
        ]
    )
    wide = np.maximum(ends[:, 1] - ends[:, 0], _LEAST)
    result = {
        "log_score": np.log(np.maximum(likelihood[counted], _LEAST)).mean(),
        "mae": np.abs(quantiles(rows[ended], (0.5,))[:, 0] - actual).mean(),
    }
    for level in _COVERED:
        low, high = (1 - level) / 2, (1 + level) / 2
        inside = np.minimum(ends[:, 1], high) - np.maximum(ends[:, 0], low)
        result[f"{level:.0%}"] = (np.maximum(inside, 0.0) / wide).mean()
    return {name: round(float(value), 4) for name, value in result.items()}


def learnt(stream: Stream) -> int:
    """Requests of a stream before those that are scored."""
    return _LEARNT if len(stream) >= _FEW else _LEARNT_OF_FEW


def running_median_mae(stream: Stream) -> float:
    """Mean absolute error of the median of all earlier answers, cut ones included."""
    tokens: Ints = stream.tokens
    scored = [i for i in range(learnt(stream), len(stream)) if not stream.censored[i]]
    return round(float(np.mean([abs(np.median(tokens[:i]) - tokens[i]) for i in scored])), 4)


def cost_us(stream: Stream, base: Floats, seen: Floats) -> dict[str, float]:
    """CPU time of one call, the least of ten means over 100, with a group."""
    adapter = Adapter()
    calls: dict[str, Callable[[int], object]] = {
        "observe": lambda i: adapter.observe(
            "m", base[i], int(stream.tokens[i]), group="g", seen=seen[i]
        ),
        "adjust": lambda i: adapter.adjust("m", base[i], "g", seen[i]),
        "adjust, each of 100 together": lambda i: (
            i or adapter.adjust("m", base[:100], "g", seen[:100])
        ),
    }
    found = {}
    for name, call in calls.items():
        means = []
        for _ in range(10):
            began = time.process_time()
            for i in range(100):
                call(i)
            means.append((time.process_time() - began) * 1e4)
        found[name] = round(min(means), 1)
    return found


def adapt_all(folder: Path) -> Numbers:
    """The scores of every method on every stream, and what a call costs."""
    rng = np.random.default_rng(SEED)
    base = Base(sharegpt(folder / "sharegpt_train.jsonl.gz", "training"), rng)
    result: Numbers = {"streams": {}}
    for stream in streams(folder, rng):
        rows, seen = base.probabilities(stream), base.seen(stream)
        result["streams"][stream.name] = {
            "requests": len(stream),
            "learnt": learnt(stream),
            "running_median_mae": running_median_mae(stream),
            "methods": {
                name: score(predict(method(), stream, rows, seen), stream)
                for name, method in METHODS.items()
            },
        }
        result.setdefault("cost_us", cost_us(stream, rows, seen))
    return result


def summary(result: Numbers) -> dict[str, dict[str, float]]:
    """Means over streams; of intervals, the mean distance from what was promised."""
    found = {}
    for name in METHODS:
        pairs = [
            (stream["methods"][name], stream["running_median_mae"])
            for stream in result["streams"].values()
        ]
        found[name] = {
            "log_score": np.mean([scores["log_score"] for scores, _ in pairs]),
            "mae": np.mean([scores["mae"] / median for scores, median in pairs]),
        } | {
            f"{level:.0%}": np.mean([abs(scores[f"{level:.0%}"] - level) for scores, _ in pairs])
            for level in _COVERED
        }
    return {
        name: {key: round(float(value), 4) for key, value in scores.items()}
        for name, scores in found.items()
    }


def tables(result: Numbers) -> Blocks:
    """The means over streams, each stream, and the cost."""
    lines = [
        made_by(result),
        "A request is predicted before its answer is observed. Scored are those after the first so "
        "many; log score is in nats per request, higher is better; MAE is of the median, in "
        "tokens, in brackets over that of the running median of the model's own answers.\n",
        "## Mean over streams\n",
        "MAE over that of the running median; intervals: mean distance from the promise.\n",
        markdown_table(
            ("", *HEADER), [(name, *_cells(s)) for name, s in result["summary"].items()]
        ),
    ]
    for name, found in result["streams"].items():
        median = found["running_median_mae"]
        lines.append(f"## {name}\n")
        lines.append(f"{found['requests']} requests, scored after {found['learnt']}.\n")
        rows = [(method, *_cells(s, median)) for method, s in found["methods"].items()]
        lines.append(markdown_table(("", *HEADER), rows))
    lines.append("## Cost\n")
    lines.append(markdown_table(("call", "CPU microseconds"), result["cost_us"].items()))
    return {"tables": "\n".join(lines)}


def _cells(scores: dict[str, float], median: float | None = None) -> list[str]:
    mae = scores["mae"]
    return [
        f"{scores['log_score']:.3f}",
        f"{mae:.3f}" if median is None else f"{mae:.1f} ({mae / median:.2f})",
        *(f"{100 * scores[f'{level:.0%}']:.1f}%" for level in _COVERED),
    ]


def measure(options: argparse.Namespace) -> Numbers:
    """Adapt to every stream."""
    result = adapt_all(options.data / "text")
    return {**result, "summary": summary(result)}


if __name__ == "__main__":
    BENCH.main(measure, tables)
