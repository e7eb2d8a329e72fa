"""Is it worth telling the tagger of answers that still run?

Of an answer that is being generated it is known that it is longer than what there is of it. Told
only of answers that have ended, a tagger first hears of the short ones. DATA and the base model are
those of `bench.length.adapt`; here each request is predicted when it arrives, while so many others
run, each making a token per unit of time, and an answer is observed when it ends.
"""

import argparse
import heapq

import numpy as np

from bench.length.adapt import SEED
from bench.length.base import Base, Floats, Stream, sharegpt, streams
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.length.adapt import Adapter
from foretell.length.bins import bin_of, quantiles

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    paths={"DATA": "folder with text/"},
    packages=("foretell", "numpy"),
)
IN_FLIGHT = (50, 200)
"""Requests on average."""
FIRST = 100
"""Requests by which the beginning is judged."""
_LATE = 0.9  # level of the estimate from which on a running answer is told of
_LEAST = 1e-9
_ARRIVES, _RUNS, _ENDS = "arrives", "runs", "ends"
METHODS = ("at once", "when it has ended", "also while it runs")
"""When an answer is observed; the first is more than there can be."""


def predict(method: str, in_flight: float, stream: Stream, base: Floats, seen: Floats) -> Floats:
    """(n, `BINS`): each request's distribution as it arrives."""
    adapter, found = Adapter(), np.empty_like(base)
    between = float(stream.tokens.mean()) / in_flight
    events = [(i * between, _ARRIVES, i) for i in range(len(stream))]
    heapq.heapify(events)

    def observe(i: int, tokens: int, censored: bool) -> None:
        adapter.observe("model", base[i], tokens, censored, stream.groups[i], seen[i])

    while events:
        now, what, i = heapq.heappop(events)
        tokens, began = int(stream.tokens[i]), i * between
        if what == _ENDS:
            observe(i, tokens, bool(stream.censored[i]))
        elif what == _RUNS:
            so_far = round(now - began)
            observe(i, so_far, True)
            if 2 * so_far < tokens:
                heapq.heappush(events, (began + 2 * so_far, _RUNS, i))
        else:
            found[i] = adapter.adjust("model", base[i], stream.groups[i], seen[i])
            if method == METHODS[0]:
                observe(i, tokens, bool(stream.censored[i]))
                continue
            heapq.heappush(events, (began + tokens, _ENDS, i))
            late = round(quantiles(found[i][None], (_LATE,))[0, 0])
            if method == METHODS[2] and late < tokens:
                heapq.heappush(events, (began + late, _RUNS, i))
    return found


def score(rows: Floats, stream: Stream, counted: slice) -> dict[str, float]:
    """Scores of the `counted` requests; errors and the interval are those of complete answers."""
    own = bin_of(stream.tokens)
    every = np.arange(len(stream))
    reached = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1][every, own]
    likelihood = np.where(stream.censored, reached, rows[every, own])[counted]
    ended = ~stream.censored[counted]
    low, median, high = quantiles(rows[counted][ended], (0.1, 0.5, 0.9)).T
    actual = stream.tokens[counted][ended]
    return {
        "log_score": float(np.log(np.maximum(likelihood, _LEAST)).mean()),
        "mae": float(np.abs(median - actual).mean()),
        "80%": float(((low <= actual) & (actual <= high)).mean()),
    }


def measure(options: argparse.Namespace) -> Numbers:
    """One row per number in flight, part of the streams and method: means over streams."""
    folder = options.data / "text"
    rng = np.random.default_rng(SEED)
    base = Base(sharegpt(folder / "sharegpt_train.jsonl.gz", "training"), rng)
    parts = {f"first {FIRST}": slice(FIRST), "all after": slice(FIRST, None)}
    others = [(s, base.probabilities(s), base.seen(s)) for s in streams(folder, rng)]
    rows: list[Numbers] = []
    for in_flight in IN_FLIGHT:
        found: dict[tuple[str, str], list[dict[str, float]]] = {}
        for stream, probabilities, seen in others:
            for method in METHODS:
                predicted = predict(method, in_flight, stream, probabilities, seen)
                for part, counted in parts.items():
                    scores = score(predicted, stream, counted)
                    found.setdefault((part, method), []).append(scores)
        for (part, method), scored in found.items():
            sure = [scores["mae"] for scores in found[part, METHODS[0]]]
            ratios = [s["mae"] / least for s, least in zip(scored, sure, strict=True)]
            rows.append(
                {
                    "in_flight": in_flight,
                    "requests": part,
                    "told": method,
                    "log_score": round(float(np.mean([s["log_score"] for s in scored])), 4),
                    "mae": round(float(np.mean(ratios)), 4),
                    "off_80%": round(float(np.mean([abs(s["80%"] - 0.8) for s in scored])), 4),
                }
            )
    rows.sort(key=lambda row: (row["in_flight"], row["requests"] != f"first {FIRST}"))
    return {"rows": rows}


def tables(result: Numbers) -> Blocks:
    """A row for each number in flight, part of the streams and method."""
    table = markdown_table(
        ("in flight", "requests", "told of an answer", "log score", "MAE", "80% interval"),
        [
            (
                row["in_flight"],
                row["requests"],
                row["told"],
                f"{row['log_score']:.3f}",
                f"{row['mae']:.3f}",
                f"{100 * row['off_80%']:.1f}%",
            )
            for row in result["rows"]
        ],
    )
    text = (
        "Means over the streams of [adapt.md](adapt.md). Log score in nats per "
        "request, higher is better; MAE over that of a tagger told of each answer before the next "
        "request; of the interval, the distance from what was promised. *Also while it runs*: an "
        "answer beyond its estimate's 0.9 quantile is observed as cut there, and again whenever it "
        "has become twice as long.\n"
    )
    return {"tables": "\n".join([made_by(result), text, table])}


if __name__ == "__main__":
    BENCH.main(measure, tables)
