"""Foretell's placement policies against Block's, in the simulator: capacity, and latency there.

    python -m bench.placement.beyond_block TRACES [--processes 2] [--settings N ...]

TRACES is a folder with the traces of `bench.placement.reproduce_block` and
`mooncake_conversation.t0-2100.jsonl.gz` (Mooncake's format, with prefix hashes). Finished runs are
kept in build/beyond_block.jsonl: what was interrupted goes on, as long as the code is the same.
Writes bench/placement/results/beyond_block.json and .md, and what docs/placement.md says of it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bench.placement.block.beyond import SETTINGS, markdown, results_of, run_all
from bench.placement.block.runs import ROOT, Results, state_of_the_code
from bench.stats import write_into
from tools.harness.machine import describe_machine, describe_run

RESULTS = ROOT / "bench" / "results"
KEPT = ROOT / "build" / "beyond_block.jsonl"
PAGE = ROOT / "docs" / "placement.md"


def main() -> None:
    """Simulate what has not been yet, and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, help="folder of the traces")
    parser.add_argument("--processes", type=int, default=2)
    every = range(len(SETTINGS))
    parser.add_argument("--settings", type=int, nargs="+", default=list(every), choices=every)
    options = parser.parse_args()
    settings = [SETTINGS[number] for number in sorted(set(options.settings))]
    facts: dict[str, Any] = {
        **describe_run("bench.placement.beyond_block"),
        "machine": describe_machine("foretell", "numba", "numpy"),
        "state_of_the_code": state_of_the_code(),
    }
    facts["command"] = "python -m bench.placement.beyond_block TRACES"
    kept = Results(KEPT)
    searches, cpu_s = run_all(str(options.traces), kept, options.processes, settings)
    page = {**facts, "cpu_s": round(cpu_s), **results_of(kept, searches, settings)}
    text = markdown(page, settings)
    print(text)
    if len(settings) < len(SETTINGS):
        return  # a look at some of them
    (RESULTS / "beyond_block.json").write_text(json.dumps(page, indent=1) + "\n")
    (RESULTS / "beyond_block.md").write_text(f"# Beyond Block\n\n{text}")
    write_into(PAGE, "beyond_block", text)


if __name__ == "__main__":
    main()
