"""Does the Block paper's evaluation come out as published?

The evaluation of arXiv 2508.03611, repeated in the simulator. TRACES holds
`sharegpt_10k_llama2_lengths.csv` (columns `num_prefill_tokens` and `num_decode_tokens`) and
`azure2023_conv.t0-2100.csv.gz` (`t`, `in_tok`, `out_tok`). Finished runs are kept in build/, so
that an interrupted run goes on as long as the code is the same.
"""

import argparse

from bench.placement.block.figures import draw_all
from bench.placement.block.page import results_of, tables
from bench.placement.block.runs import Results, state_of_the_code
from bench.placement.block.sweep import run_all
from bench.report import Benchmark, Numbers

__all__ = ["BENCH", "measure", "tables"]
BENCH = Benchmark(
    __file__, __doc__, takes="10 minutes", paths={"TRACES": "folder of the traces"}, processes=2
)


def measure(options: argparse.Namespace) -> Numbers:
    """Simulate what has not been simulated yet, and draw three pictures."""
    kept = Results(BENCH.kept)
    searches, cpu_s = run_all(str(options.traces), kept, options.processes)
    if options.write:
        draw_all(kept, BENCH)
    return {
        "state_of_the_code": state_of_the_code(),
        "cpu_s": round(cpu_s),
        **results_of(kept, searches),
    }
