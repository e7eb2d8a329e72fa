"""What do the largest requests cost the others?

Block's policy where they never come: of each seed's requests in `bench.placement.beyond_block` the
largest 1% are taken out, the others arrive when they did, at Block's capacity. It bounds what can
be gained for the P99 of TTFT by serving the largest 1% last, as `bench.placement.order` does.
"""

import argparse
from functools import partial

from bench.placement import beyond_block
from bench.placement.block.beyond import SETTINGS
from bench.placement.block.bound import work
from bench.placement.block.runs import run
from bench.placement.block.settings import Case
from bench.placement.order import RATIO
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from bench.stats import change
from foretell.workload import Arrival

BENCH = Benchmark(__file__, __doc__, paths={"TRACES": "folder of the traces"}, processes=2)
SHOWN = {"ttft_p99_s": "P99 TTFT", "ttft_mean_s": "mean TTFT", "e2e_p99_s": "P99 e2e"}


def without_largest(arrivals: list[Arrival]) -> list[Arrival]:
    """All but the largest 1%, by the KV tokens that they hold times the steps they do so."""
    sizes = [work(a.prompt_tokens, a.output_tokens) for a in arrivals]
    largest = sorted(range(len(arrivals)), key=sizes.__getitem__)[-round(RATIO * len(arrivals)) :]
    left_out = set(largest)
    return [arrival for i, arrival in enumerate(arrivals) if i not in left_out]


def of_block() -> list[Numbers]:
    """Block's runs at its capacity, one for each setting and seed."""
    return [row for row in beyond_block.BENCH.read()["rows"] if row["scheduler"] == "Block"]


def rerun(block: Numbers, traces: str) -> Numbers:
    """A run of Block's again, without the largest requests."""
    setting = next(s for s in SETTINGS if s.name == block["setting"])
    case = Case(setting, setting.searched[0], block["block_qps"], block["seed"])
    found = run(case, traces, without_largest)
    return {
        "setting": setting.name,
        "seed": case.seed,
        "qps": case.qps,
        **{name: found[name] for name in SHOWN},
    }


def tables(numbers: Numbers) -> Blocks:
    """A row for each setting, with the changes against Block's own runs."""
    found = {(row["setting"], row["seed"]): row for row in numbers["rows"]}
    table = []
    for setting in SETTINGS:
        theirs = [row for row in of_block() if row["setting"] == setting.name]
        mine = [found[row["setting"], row["seed"]] for row in theirs]
        cells = [
            change([a[name] / b[name] for a, b in zip(mine, theirs, strict=True)]) for name in SHOWN
        ]
        table.append((setting.name, *cells))
    text = (
        "Block's policy at its capacity, its largest 1% of the requests taken out: changes "
        "against the same with them, over all that are served. Geometric means of ratios taken "
        "seed by seed, with their 95% confidence interval.\n"
    )
    header = ("", *SHOWN.values())
    return {"tables": "\n".join([made_by(numbers), text, markdown_table(header, table)])}


def measure(options: argparse.Namespace) -> Numbers:
    one = partial(rerun, traces=str(options.traces))
    return {"rows": run_each(one, of_block(), options.processes)}


if __name__ == "__main__":
    BENCH.main(measure, tables)
