"""How far is the twin from real GPUs with tensor parallelism and 8-bit weights?

DATA is any folder with aiconfigurator's kernel tables, in folders named as its systems, and its
list of what vLLM was measured to take on such systems, `silicon_e2e*.csv`: the mean TTFT and TPOT
of so many clients, each of which asks again once it is answered. The twin plays the runs. What the
host adds is learnt from the runs with the fewest devices of each model and version of vLLM, and the
others tell how far off the twin is.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.accuracy.silicon_runs import DATASHEET, TABLES, Case, first_of, learnt, play, runs_of
from bench.accuracy.silicon_runs import trials as trials_of
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from foretell.tools.pictures import figure, save

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
    numbers: Numbers = {
        "left_out": left_out,
        "runs": [
            _row(case, found, learnt_from=case.run in taught)
            for case, found in zip(cases, played, strict=True)
        ],
    }
    if options.write:
        draw(numbers, BENCH.result(".svg"))
    return numbers


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
    """Errors by model and devices, and what was left out."""
    head = (
        "model, weights, system, vLLM",
        "devices",
        "runs",
        *(f"TPOT, {name}: mean / per run" for name in SOURCES.values()),
        "TTFT, kernel tables: median run / per run",
        "host: ms a step + µs a sequence",
    )
    lines = [made_by(numbers), markdown_table(head, [*_rows(numbers["runs"])])]
    left_out = "\n".join(f"- {what}" for what in numbers["left_out"]) or "Nothing."
    return {"tables": "\n".join(lines), "left out": left_out}


def _rows(rows: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    def of(row: dict[str, Any]) -> tuple[Any, ...]:
        names = "model", "weights", "system", "version", "devices", "expert_parallel"
        return tuple(row[name] for name in names)

    for key, grouped in groupby(rows, key=of):
        found = list(grouped)
        by_source = {name: [r for r in found if r["source"] == name] for name in SOURCES}
        of_tables = by_source[TABLES]
        first, ttfts = of_tables[0], errors(of_tables, "ttft_s")
        yield (
            f"{key[0]}, {key[1]}, {key[2]}, {key[3] or '?'}",
            f"{key[4]}"
            + (", experts as a whole" if key[5] else "")
            + (" (learnt from)" if first["learnt_from"] else ""),
            f"{len(of_tables)}",
            *(_mean_and_size(errors(each, "tpot_s")) for each in by_source.values()),
            f"{sorted(ttfts)[len(ttfts) // 2]:+.0%} / {fmean(map(abs, ttfts)):.0%}",
            f"{first['host_step_ms']:.2f} + {first['host_sequence_us']:.0f}",
        )


def _mean_and_size(found: list[float]) -> str:
    return f"{fmean(found):+.1%} / {fmean(map(abs, found)):.1%}"


def errors(rows: list[dict[str, Any]], what: str) -> list[float]:
    """(predicted - actual) / actual of each run."""
    return [row[what][1] / row[what][0] - 1.0 for row in rows]


def draw(numbers: Numbers, path: Path) -> None:
    """Predicted over measured TPOT and TTFT, with the tables."""
    rows = [row for row in numbers["runs"] if row["source"] == TABLES]
    picture = figure(9.6, 4.4)
    for axis, (what, scale, unit) in zip(
        picture.subplots(1, 2), (("tpot_s", 1e3, "ms"), ("ttft_s", 1.0, "s")), strict=True
    ):
        for devices in sorted({row["devices"] for row in rows}):
            pairs = [row[what] for row in rows if row["devices"] == devices]
            actual, predicted = ([scale * pair[place] for pair in pairs] for place in (0, 1))
            label = f"{devices} devices" if devices > 1 else "1 device"
            axis.scatter(actual, predicted, s=12, alpha=0.7, linewidths=0, label=label)
        ends = [scale * value for row in rows for value in row[what]]
        axis.plot([min(ends), max(ends)], [min(ends), max(ends)], color="0.6", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(f"measured mean {what[:4].upper()}, {unit}")
        axis.set_ylabel(f"the twin's, {unit}")
        axis.legend()
    save(picture, path)


if __name__ == "__main__":
    BENCH.main(measure, tables)
