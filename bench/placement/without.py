"""What the largest requests cost the others: Block's policy where they never come.

    python -m bench.placement.without TRACES

Of each seed's requests in `bench.placement.beyond_block` the largest 1% are taken out, the others
arrive when they did, at Block's capacity (looked up in bench/placement/results/beyond_block.json).
It bounds what can be had for the P99 of TTFT by putting the largest 1% off, as
`bench.placement.order` does. Some minutes. Writes bench/placement/results/without.json and .md.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from bench.placement.block.beyond import SETTINGS, change
from bench.placement.block.runs import ROOT, run
from bench.placement.block.settings import Case
from bench.placement.order import RATIO
from bench.stats import markdown_table
from foretell.workload import Arrival
from tools.harness.machine import describe_machine, describe_run, machine_line

RESULTS = ROOT / "bench" / "results"
SHOWN = {"ttft_p99_s": "P99 TTFT", "ttft_mean_s": "mean TTFT", "e2e_p99_s": "P99 e2e"}

Row = dict[str, Any]


def without_largest(arrivals: list[Arrival]) -> list[Arrival]:
    """All but the largest 1%, by the KV tokens that they hold times the steps they do so."""
    sizes = [a.output_tokens * (a.prompt_tokens + a.output_tokens / 2) for a in arrivals]
    largest = sorted(range(len(arrivals)), key=sizes.__getitem__)[-round(RATIO * len(arrivals)) :]
    left_out = set(largest)
    return [arrival for i, arrival in enumerate(arrivals) if i not in left_out]


def measured(block: Row, traces: str) -> Row:
    """Block's own run of a setting and seed again, without the largest."""
    setting = next(s for s in SETTINGS if s.name == block["setting"])
    case = Case(setting, setting.searched[0], block["block_qps"], block["seed"])
    found = run(case, traces, without_largest)
    return {
        "setting": setting.name,
        "seed": case.seed,
        "qps": case.qps,
        **{name: found[name] for name in SHOWN},
    }


def markdown(page: dict[str, Any], block: Sequence[Row]) -> str:
    """bench/placement/results/without.md."""
    table = []
    for setting in SETTINGS:
        pairs = [
            (next(r for r in page["rows"] if _key(r) == _key(b)), b)
            for b in block
            if b["setting"] == setting.name
        ]
        cells = [change([mine[name] / theirs[name] for mine, theirs in pairs]) for name in SHOWN]
        table.append((setting.name, *cells))
    return "\n".join(
        [
            f"Made by `{page['command']}` on {page['date']}; {machine_line(page['machine'])}.\n",
            "Block's policy at its capacity, its largest 1% of the requests taken out: changes "
            "against the same with them, over all that are served. Geometric means of ratios taken "
            "seed by seed, with their 95% confidence interval.\n",
            markdown_table(("", *SHOWN.values()), table),
        ]
    )


def _key(row: Row) -> tuple[str, int]:
    return row["setting"], row["seed"]


def main() -> None:
    """Simulate and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, help="folder of the traces")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    facts = {
        **describe_run("bench.placement.without"),
        "machine": describe_machine("foretell", "numba", "numpy"),
    }
    facts["command"] = "python -m bench.placement.without TRACES"
    every = json.loads((RESULTS / "beyond_block.json").read_text())["rows"]
    block = [row for row in every if row["scheduler"] == "Block"]
    one = partial(measured, traces=str(options.traces))
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        found = pool.map(one, block)
        rows = list(track(found, "runs", len(block), console=Console(stderr=True)))
    page = {**facts, "rows": rows}
    text = markdown(page, block)
    print(text)
    (RESULTS / "placement_without.json").write_text(json.dumps(page, indent=1) + "\n")
    (RESULTS / "placement_without.md").write_text(f"# Without the largest\n\n{text}")


if __name__ == "__main__":
    main()
