"""How far is the twin from real GPUs with tensor parallelism and 8-bit weights?

DATA is any folder with aiconfigurator's kernel tables, in folders named as its systems, and its
list of what vLLM was measured to take on such systems, `silicon_e2e*.csv`: the mean TTFT and TPOT
of so many clients, each of which asks again once it is answered. The twin plays the runs. What the
host adds is learnt from the runs with the fewest devices of each model and version of vLLM, and the
others tell how far off the twin is.
"""

import argparse
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Any

from bench.accuracy.silicon_runs import DATASHEET, TABLES, Case, first_of, learnt, play, runs_of
from bench.accuracy.silicon_runs import trials as trials_of
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="30 minutes",
    paths={"DATA": "folder with aiconfigurator's tables and its silicon_e2e*.csv"},
    processes=2,
)
SOURCES = {TABLES: "kernel tables", DATASHEET: "datasheet"}


def measure(options: argparse.Namespace) -> Numbers:
    """Learn the host's time, play all runs with it, and plot them."""
    runs, left_out = runs_of(options.data)
    groups = [list(group) for _, group in groupby(runs, key=lambda run: run.group)]
    one = partial(play, data=options.data)
    trials = [case for group in groups for source in SOURCES for case in trials_of(group, source)]
    tried = run_each(one, trials, options.processes)
    tpots_s = {case: tpot_s for case, (_, tpot_s) in zip(trials, tried, strict=True)}
    hosts = {
        (group[0].group, source): learnt(group, source, tpots_s)
        for group in groups
        for source in SOURCES
    }
    cases = [
        Case(run, source, hosts[run.group, source])
        for group in groups
        for run in group
        for source in SOURCES
    ]
    played = run_each(one, cases, options.processes)
    taught = {run for group in groups for run in first_of(group)}
    return {
        "left_out": left_out,
        "runs": [
            _row(case, found, learnt_from=case.run in taught)
            for case, found in zip(cases, played, strict=True)
        ],
    }


def _row(case: Case, found: tuple[float, float], *, learnt_from: bool) -> dict[str, Any]:
    run, host = case.run, case.host
    return {
        "system": run.system,
        "model": run.model,
        "weights": run.weights,
        "version": run.version,
        "devices": run.devices,
        "expert_parallel": run.expert_parallel,
        "prompt_tokens": run.prompt_tokens,
        "output_tokens": run.output_tokens,
        "clients": run.clients,
        "source": case.source,
        "learnt_from": learnt_from,
        "host_step_ms": round(1e3 * host.step_s, 3),
        "host_sequence_us": round(1e6 * host.sequence_s, 1),
        "ttft_s": [round(run.ttft_s, 4), round(found[0], 4)],
        "tpot_s": [round(run.tpot_s, 5), round(found[1], 5)],
    }


def tables(numbers: Numbers) -> Blocks:
    """Errors of the runs that nothing was learnt from, by model, weights and system."""
    head = (
        "model, weights, system",
        "devices",
        "runs",
        *(f"TPOT, {name}" for name in SOURCES.values()),
        *(f"TTFT, {name}" for name in SOURCES.values()),
    )
    unseen = [row for row in numbers["runs"] if not row["learnt_from"]]
    keys = dict.fromkeys((row["model"], row["weights"], row["system"]) for row in unseen)
    rows = []
    for key in keys:
        own = [row for row in unseen if (row["model"], row["weights"], row["system"]) == key]
        rows.append((", ".join(key), *_cells(own)))
    rows.append(("**all**", *_cells(unseen)))
    text = (
        "Errors are (predicted - actual) / actual of a run's mean: mean over runs / mean size. "
        f"Left out: {'; '.join(numbers['left_out']) or 'nothing'}.\n"
    )
    return {"tables": "\n".join([made_by(numbers), text, markdown_table(head, rows)])}


def _cells(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    by_source = [[row for row in rows if row["source"] == source] for source in SOURCES]
    devices = sorted({row["devices"] for row in rows})
    return (
        f"{devices[0]} to {devices[-1]}" if len(devices) > 1 else f"{devices[0]}",
        f"{len(by_source[0])}",
        *(
            _mean_and_size(errors(each, what))
            for what in ("tpot_s", "ttft_s")
            for each in by_source
        ),
    )


def _mean_and_size(found: list[float]) -> str:
    return f"{fmean(found):+.1%} / {fmean(map(abs, found)):.1%}"


def errors(rows: list[dict[str, Any]], what: str) -> list[float]:
    """(predicted - actual) / actual of each run."""
    return [row[what][1] / row[what][0] - 1.0 for row in rows]
