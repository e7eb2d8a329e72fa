"""Do Foretell's policies beat Block's, in capacity and in latency there?

TRACES holds the traces of `bench.placement.reproduce_block` and
`mooncake_conversation.t0-2100.jsonl.gz` (Mooncake's format, with prefix hashes). Finished runs are
kept in build/, so that an interrupted run goes on as long as the code is the same.
"""

import argparse

from bench.placement.block.beyond import SETTINGS, markdown, results_of
from bench.report import Benchmark, Blocks, Numbers

BENCH = Benchmark(
    __file__, __doc__, takes="30 minutes", paths={"TRACES": "folder of the traces"}, processes=2
)


def arguments(parser: argparse.ArgumentParser) -> None:
    every = range(len(SETTINGS))
    parser.add_argument("--settings", type=int, nargs="+", default=list(every), choices=every)


def measure(options: argparse.Namespace) -> Numbers:
    """Simulate what has not been simulated yet."""
    settings = [SETTINGS[number] for number in sorted(set(options.settings))]
    return results_of(str(options.traces), BENCH.kept, options.processes, settings)


def tables(numbers: Numbers) -> Blocks:
    return {"tables": markdown(numbers, SETTINGS)}
