"""What is it worth that engines serve the largest requests last?

Capacity, and latency there. TRACES is the folder of `bench.placement.beyond_block`; settings,
searches and tables are as there. Others are compared with Block's policy at engines that serve in
order of arrival.
"""

import argparse
from dataclasses import replace

from bench.placement.block.beyond import SETTINGS, markdown, results_of
from bench.placement.block.settings import Scheduler, Setting
from bench.report import Benchmark, Blocks, Numbers

BENCH = Benchmark(
    __file__, __doc__, takes="30 minutes", paths={"TRACES": "folder of the traces"}, processes=2
)
RATIO = 0.01
"""The part of the requests, the largest, that engines serve last."""


def ordered(setting: Setting) -> Setting:
    """`setting` with Block's scheduler, and with two that have engines serve the largest last."""
    block = setting.searched[0]

    def last(title: str, policy: str) -> Scheduler:
        title = f"{title}, largest 1% last"
        return Scheduler(title, policy, block.estimates, largest_last=RATIO)

    searched = (block, last("Block", block.policy), last("externality", "externality"))
    return replace(setting, searched=searched)


ORDERED = [ordered(setting) for setting in SETTINGS]


def measure(options: argparse.Namespace) -> Numbers:
    """Simulate what has not been simulated yet."""
    return results_of(str(options.traces), BENCH.kept, options.processes, ORDERED)


def tables(numbers: Numbers) -> Blocks:
    return {"tables": markdown(numbers, ORDERED)}
