"""What bounds placement?

The clusters of `bench.placement.beyond_block`, whose folder of traces and whose results it takes,
with their engines made one. Finished runs are kept in build/, so that an interrupted run goes on as
long as the code is the same. The picture needs matplotlib.
"""

import argparse
import sys

from bench.placement import beyond_block
from bench.placement.block.beyond import SEEDS, SETTINGS
from bench.placement.block.bound_page import BLOCK, as_servers, blocks, draw
from bench.placement.block.bound_runs import (
    BUSY_SEEDS,
    BUSY_SETTINGS,
    Runs,
    capacities,
    packed,
    saturated,
)
from bench.placement.block.runs import Results, state_of_the_code
from bench.report import Benchmark, Blocks, Numbers

BENCH = Benchmark(__file__, __doc__, takes="20 minutes", paths={"TRACES": "folder of the traces"})


def measure(options: argparse.Namespace) -> Numbers:
    """Simulate what has not been simulated yet."""
    of_policies = beyond_block.BENCH.read()["rows"]
    block = [row for row in of_policies if row["scheduler"] == BLOCK]
    kept = Results(BENCH.kept)
    runs = Runs(str(options.traces), kept, lambda line: print(line, file=sys.stderr))
    rows = list(capacities(runs, block, SETTINGS))
    busy = list(saturated(runs, block, BUSY_SETTINGS, BUSY_SEEDS))
    busy += packed(runs, block, BUSY_SETTINGS, BUSY_SEEDS)
    if options.write:
        draw([*as_servers(of_policies), *rows], BENCH.result(".svg"))
    return {
        "state_of_the_code": state_of_the_code(),
        "cpu_s": round(runs.cpu_s),
        "rows": rows,
        "packed": list(packed(runs, block, SETTINGS, SEEDS)),
        "busy": busy,
    }


def tables(numbers: Numbers) -> Blocks:
    return blocks(numbers, beyond_block.BENCH.read()["rows"])


if __name__ == "__main__":
    BENCH.main(measure, tables)
