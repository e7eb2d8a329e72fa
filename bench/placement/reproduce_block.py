"""The evaluation of the Block paper (arXiv 2508.03611), repeated in the simulator.

    python -m bench.placement.reproduce_block TRACES [--processes 2]

TRACES is a folder with `sharegpt_10k_llama2_lengths.csv` (columns `num_prefill_tokens` and
`num_decode_tokens`) and `azure2023_conv.t0-2100.csv.gz` (`t`, `in_tok`, `out_tok`). Finished runs
are kept in build/reproduce_block.jsonl: what was interrupted goes on, as long as the code is the
same. Writes bench/placement/results/reproduce_block.json and .md, three pictures in docs/img, and
what docs/placement.md says of it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bench.placement.block.figures import draw_all
from bench.placement.block.page import markdown, results_of
from bench.placement.block.runs import ROOT, Results, state_of_the_code
from bench.placement.block.settings import Case
from bench.placement.block.sweep import run_all
from bench.stats import write_into
from tools.harness.machine import describe_machine, describe_run

RESULTS = ROOT / "bench" / "results"
KEPT = ROOT / "build" / "reproduce_block.jsonl"
PAGE = ROOT / "docs" / "placement.md"


def main() -> None:
    """Simulate what has not been yet, and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, help="folder of the two traces")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    facts: dict[str, Any] = {
        **describe_run("bench.placement.reproduce_block"),
        "machine": describe_machine("foretell", "numba", "numpy"),
        "state_of_the_code": state_of_the_code(),
    }
    facts["command"] = "make reproduce-block TRACES=FOLDER"
    kept = Results(KEPT)
    searches, cpu_s = run_all(str(options.traces), kept, options.processes)
    page = {**facts, "cpu_s": round(cpu_s), **results_of(kept, searches)}
    (RESULTS / "reproduce_block.json").write_text(json.dumps(page, indent=1) + "\n")

    def found(case: Case) -> dict[str, Any]:
        result = kept.get(case)
        assert result is not None, f"{case} has not run"
        return result

    draw_all(found, ROOT / "docs" / "img")
    text = markdown(page)
    (RESULTS / "reproduce_block.md").write_text(f"# Block's evaluation, repeated\n\n{text}")
    write_into(PAGE, "reproduce_block", text)
    print(text)


if __name__ == "__main__":
    main()
