"""What is each part of the score of `externality` worth?

Policies that leave one part out or replace it, in the first setting of
`bench.placement.beyond_block`, whose TRACES, searches and table these are.
"""

import argparse
from dataclasses import replace

from bench.placement.block.beyond import BLOCK, EXTERNALITY, SETTINGS, markdown, results_of
from bench.placement.block.settings import Scheduler
from bench.placement.variants import ABLATIONS
from bench.report import Benchmark, Blocks, Numbers

BENCH = Benchmark(
    __file__, __doc__, takes="10 minutes", paths={"TRACES": "folder of the traces"}, processes=2
)
SEARCHED = (BLOCK, EXTERNALITY, *(Scheduler(name, name) for name in ABLATIONS))
PARTS = [replace(SETTINGS[0], searched=SEARCHED)]


def measure(options: argparse.Namespace) -> Numbers:
    """Simulate what has not been simulated yet."""
    return results_of(str(options.traces), BENCH.kept, options.processes, PARTS)


def tables(numbers: Numbers) -> Blocks:
    return {"tables": markdown(numbers, PARTS)}
