"""What bounds placement: the clusters of `bench.placement.beyond_block`, their engines made one.

    python -m bench.placement.bound TRACES

TRACES is the folder that `bench.placement.beyond_block` is given, whose results are looked up in
bench/placement/results/beyond_block.json. Finished runs are kept in build/placement_bound.jsonl:
what was interrupted goes on, as long as the code is the same. Writes
bench/placement/results/bound.json, .md and .svg; the last needs matplotlib.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.placement.block.beyond import SEEDS, SETTINGS
from bench.placement.block.bound_page import BLOCK, as_servers, draw, fields
from bench.placement.block.bound_runs import (
    BUSY_SEEDS,
    BUSY_SETTINGS,
    Runs,
    capacities,
    packed,
    saturated,
)
from bench.placement.block.runs import ROOT, Results, state_of_the_code
from tools.harness.machine import describe_machine, describe_run

RESULTS = ROOT / "bench" / "results"
TEMPLATE = ROOT / "bench" / "placement_bound_page.md"
KEPT = ROOT / "build" / "placement_bound.jsonl"


def main() -> None:
    """Simulate what has not been yet, and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, help="folder of the traces")
    options = parser.parse_args()
    facts: dict[str, Any] = {
        **describe_run("bench.placement.bound"),
        "machine": describe_machine("foretell", "numba", "numpy"),
        "state_of_the_code": state_of_the_code(),
    }
    facts["command"] = "python -m bench.placement.bound TRACES"
    of_policies = json.loads((RESULTS / "beyond_block.json").read_text())["rows"]
    block = [row for row in of_policies if row["scheduler"] == BLOCK]
    runs = Runs(str(options.traces), Results(KEPT), lambda line: print(line, file=sys.stderr))
    rows = list(capacities(runs, block, SETTINGS))
    busy = list(saturated(runs, block, BUSY_SETTINGS, BUSY_SEEDS))
    busy += packed(runs, block, BUSY_SETTINGS, BUSY_SEEDS)
    page = {
        **facts,
        "cpu_s": round(runs.cpu_s),
        "rows": rows,
        "packed": list(packed(runs, block, SETTINGS, SEEDS)),
        "busy": busy,
    }
    text = TEMPLATE.read_text().format(**fields(page, of_policies))
    print(text)
    (RESULTS / "placement_bound.json").write_text(json.dumps(page, indent=1) + "\n")
    (RESULTS / "placement_bound.md").write_text(text)
    draw([*as_servers(of_policies), *rows], RESULTS / "placement_bound.svg")


if __name__ == "__main__":
    main()
