"""What it is worth that engines serve the largest requests last: capacity, and latency there.

    python -m bench.placement.order TRACES [--processes 2]

TRACES is the folder of `bench.placement.beyond_block`; settings, searches and tables are as there.
Others are compared with Block's policy at engines that serve in order of arrival. Finished runs
are kept in build/placement_order.jsonl. Writes bench/placement/results/order.json and .md.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.placement.block.beyond import SETTINGS, markdown, results_of, run_all
from bench.placement.block.runs import ROOT, Results, state_of_the_code
from bench.placement.block.settings import Scheduler, Setting
from tools.harness.machine import describe_machine, describe_run

RESULTS = ROOT / "bench" / "results"
KEPT = ROOT / "build" / "placement_order.jsonl"
RATIO = 0.01
_BLOCK, _EXTERNALITY = "Block, largest 1% last", "externality, largest 1% last"


def ordered(setting: Setting) -> Setting:
    """`setting` with whom it is about: its Block, then those whose largest requests go last."""
    block = setting.searched[0]

    def last(title: str, policy: str) -> Scheduler:
        return Scheduler(title, policy, block.estimates, largest_last=RATIO)

    searched = (block, last(_BLOCK, block.policy), last(_EXTERNALITY, "externality"))
    return replace(setting, searched=searched)


def main() -> None:
    """Simulate what has not been yet, and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, help="folder of the traces")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    settings = [ordered(setting) for setting in SETTINGS]
    facts: dict[str, Any] = {
        **describe_run("bench.placement.order"),
        "machine": describe_machine("foretell", "numba", "numpy"),
        "state_of_the_code": state_of_the_code(),
    }
    facts["command"] = "python -m bench.placement.order TRACES"
    kept = Results(KEPT)
    searches, cpu_s = run_all(str(options.traces), kept, options.processes, settings)
    page = {**facts, "cpu_s": round(cpu_s), **results_of(kept, searches, settings)}
    text = markdown(page, settings)
    print(text)
    (RESULTS / "placement_order.json").write_text(json.dumps(page, indent=1) + "\n")
    (RESULTS / "placement_order.md").write_text(f"# The largest last\n\n{text}")


if __name__ == "__main__":
    main()
