"""What `foretell tune` says: a table of what was tried, and what to change."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from foretell.tools.simulate.cluster import engine_facts
from foretell.tools.tune.run import Tuned
from foretell.tools.tune.search import MEASURES, Change, Judge, Round, Trial, known

NOTHING = "Leave everything as it is: nothing that was tried gains beyond its interval."
_DIGITS = 6
_WIDE_COLUMNS = 140  # of a terminal that has room for all measures


def show(tuned: Tuned) -> None:
    """Print it to stdout: the verdict, tables of all that was tried, and what to know."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _WIDE_COLUMNS)
    wide = console.width >= _WIDE_COLUMNS
    lines = [Text(line) for line in verdict(tuned)]
    tables = [_table(tuned, shown, wide=wide) for shown in _rounds(tuned)]
    notes = [Text(f"- {line}", style="dim") for line in notes_of(tuned)]
    console.print(Group(*lines, Text(), *tables, *notes))


def verdict(tuned: Tuned) -> Iterator[str]:
    """What to do, and what it is worth."""
    found = tuned.found
    if not tuned.recommended:
        yield NOTHING
        if found.after.setup:
            yield f"{_said(found.after.setup)} looked better, but not with other seeds."
        yield from _trades(tuned)
        return
    yield "Start the engines with:" if engine_lines(tuned) else "Set:"
    for profile, flags in engine_lines(tuned):
        yield f"  vllm serve ... {flags}    ({profile})"
    for name, value in cluster_fields(tuned).items():
        yield f"  {name}: {value}    (in the cluster file)"
    others = [name for name in known(found.before) if name != tuned.tune.goal]
    told = [f"{MEASURES[n].title} {_changed(found.after, found.before, n)}" for n in others]
    yield f"{_goal(tuned)}: {_changed(found.after, found.before, tuned.tune.goal)}"
    yield f"Besides: {', '.join(told)}"
    if tuned.capacities_qps is not None:
        before, after = tuned.capacities_qps
        yield (
            f"Requests a second within a P99 TTFT of {tuned.tune.capacity_ttft_p99_s:g} s: "
            f"{before:.3g} as things are, {after:.3g} so."
        )


def _trades(tuned: Tuned) -> Iterator[str]:
    """Changes that would help, were it not for what they make worse."""
    judge = Judge(tuned.tune.goal, tuned.tune.tolerance)
    first = tuned.found.rounds[0]
    for trial in first.trials:
        if judge.gains(trial, first.on) and judge.worse(trial, first.on):
            yield f"{_said(trial.setup)} gains, but {judge.verdict(trial, first.on)}."


def engine_lines(tuned: Tuned) -> list[tuple[str, str]]:
    """The flags to give to the engines of each profile."""
    lines = []
    for index, engine in enumerate(tuned.options.engines):
        flags = [c.engine_flags[index] for c in tuned.recommended if c.engine_flags]
        if flags:
            lines.append((engine.profile, " ".join(flags)))
    return list(dict.fromkeys(lines))


def cluster_fields(tuned: Tuned) -> dict[str, str | float]:
    """What to set in the cluster file."""
    return {k: v for change in tuned.recommended for k, v in (change.cluster_fields or {}).items()}


def notes_of(tuned: Tuned) -> Iterator[str]:
    """What the numbers rest on, and what was not tried."""
    seeds = tuned.tune.seeds
    estimates = tuned.options.estimates
    lengths = "known, as in no deployment" if estimates == "true" else f"estimates, {estimates}"
    yield (
        f"Simulated, not measured: {Path(tuned.options.trace).name} on "
        f"{', '.join(_engine(facts) for facts in _engines(tuned))}; output lengths: {lengths}."
    )
    yield (
        f"Changes are ratios of means over {seeds} seeds, with their 95% intervals (Student's t); "
        "those of what is recommended are of as many other seeds."
    )
    if tuned.arrivals_shared:
        yield (
            "Seeds share arrivals, so intervals are too narrow: with fewer --requests (up to "
            f"1/{2 * seeds} of the trace's) each seed gets a piece of the trace of its own."
        )
    if refused := int(tuned.found.rounds[0].on.mean("refused")):
        yield f"{refused:,} requests do not fit into every engine, and are left out of all runs."
    for change in tuned.recommended:
        if change.note:
            yield f"{change}: {change.note}."
    for flag, reason in tuned.proposals.left_out.items():
        yield f"Not tried, {flag}: {reason}."


def as_json(tuned: Tuned) -> dict[str, Any]:
    """Everything as plain data; changes are ratios less 1."""
    found, judge = tuned.found, Judge(tuned.tune.goal, tuned.tune.tolerance)
    return {
        "recommended": {
            "engine_flags": [
                {"profile": profile, "flags": shlex.split(flags)}
                for profile, flags in engine_lines(tuned)
            ],
            "cluster": cluster_fields(tuned),
        },
        "goal": tuned.tune.goal,
        "tolerance": tuned.tune.tolerance,
        "before": _means(found.before),
        "after": _means(found.after) if tuned.recommended else _means(found.before),
        "changes": _changes(found.after, found.before) if tuned.recommended else {},
        "capacity_qps": tuned.capacities_qps,
        "tried": [
            {
                "round": number,
                "on": [str(change) for change in each.on.setup],
                "change": str(trial.setup[-1]),
                "verdict": judge.verdict(trial, each.on),
                "kept": trial is each.kept,
                "measures": _means(trial),
                "changes": _changes(trial, each.on),
            }
            for number, each in enumerate(found.rounds, start=1)
            for trial in each.trials
        ],
        "left_out": dict(tuned.proposals.left_out),
        "notes": list(notes_of(tuned)),
        "simulated": True,
        "seeds": tuned.tune.seeds,
        "policy": tuned.options.policy,
        "engines": _engines(tuned),
    }


def _table(tuned: Tuned, shown: tuple[int, Round], *, wide: bool) -> Table:
    """A row for each change; without `wide`, of the measures only the goal."""
    number, tried = shown
    judge = Judge(tuned.tune.goal, tuned.tune.tolerance)
    names: list[str] = known(tried.on) if wide else [tuned.tune.goal]
    table = Table(
        title="Tried one by one" if number == 1 else f"Tried with {_said(tried.on.setup)}",
        caption="seconds; preempted: preemptions of 1,000 requests",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("change", no_wrap=True)
    for name in (*(MEASURES[name].title for name in names), "preempted"):
        table.add_column(name, justify="right")
    table.add_column(f"{_goal(tuned)}:\n95% interval", justify="right", no_wrap=True)
    table.add_column("", min_width=5)
    table.add_row("as it is" if number == 1 else "as above", *_cells(tried.on, names))
    for trial in tried.trials:
        kept = trial is tried.kept
        table.add_row(
            str(trial.setup[-1]),
            *_cells(trial, names),
            _changed(trial, tried.on, tuned.tune.goal),
            "kept" if kept else judge.verdict(trial, tried.on),
            style="bold" if kept else "",
        )
    return table


def _cells(trial: Trial, names: list[str]) -> list[str]:
    cells = []
    for name in names:
        share = MEASURES[name].more_is_better
        cells.append(f"{trial.mean(name):.1%}" if share else f"{trial.mean(name):.3g}")
    return [*cells, f"{trial.mean('preemptions_per_1000'):.0f}"]


def _rounds(tuned: Tuned) -> list[tuple[int, Round]]:
    """Those in which anything was tried."""
    return [(n, each) for n, each in enumerate(tuned.found.rounds, start=1) if each.trials]


def _changed(trial: Trial, reference: Trial, name: str) -> str:
    """`-32.0% (-40.1 to -24.2)`, without decimals where a measure more than doubles."""
    found = trial.against(reference, name)
    mean, low, high = (100 * (value - 1) for value in (found.ratio, found.low, found.high))
    digits = 0 if high > 100 else 1
    return f"{mean:+.{digits}f}% ({low:+.{digits}f} to {high:+.{digits}f})"


def _changes(trial: Trial, reference: Trial) -> dict[str, dict[str, float]]:
    changes = {}
    for name in known(reference):
        found = trial.against(reference, name)
        changes[name] = {
            "mean": round(found.ratio - 1, _DIGITS),
            "low": round(found.low - 1, _DIGITS),
            "high": round(found.high - 1, _DIGITS),
        }
    return changes


def _means(trial: Trial) -> dict[str, float]:
    names = [*known(trial), "preemptions_per_1000"]
    return {name: round(trial.mean(name), _DIGITS) for name in names}


def _said(setup: tuple[Change, ...]) -> str:
    return ", ".join(map(str, setup))


def _goal(tuned: Tuned) -> str:
    return MEASURES[tuned.tune.goal].title


def _engines(tuned: Tuned) -> list[dict[str, Any]]:
    return [engine_facts(engine, tuned.options) for engine in tuned.options.engines]


def _engine(facts: dict[str, Any]) -> str:
    return (
        f"{facts['instances']} x {facts['profile']} (max_num_seqs {facts['max_num_seqs']}, "
        f"max_num_batched_tokens {facts['max_num_batched_tokens']}, {facts['num_blocks']:,} KV "
        f"blocks of {facts['block_size']})"
    )
