"""Writes one page of a folder's results, the verdict first, as Markdown and as JSON."""

import json
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from foretell.tools.check.cluster import METRICS, REFERENCE
from foretell.tools.check.options import STAGES
from foretell.tools.check.truth import RECORDING
from foretell.tools.markdown import markdown_table

ANALYSIS = "truth-analysis.json"
_TITLES = {
    "ttft_mean_s": "mean TTFT, s",
    "ttft_p99_s": "P99 TTFT, s",
    "e2e_mean_s": "mean e2e, s",
    "e2e_p99_s": "P99 e2e, s",
    "goodput_per_s": "goodput, requests/s",
}
_KINDS = ("ttft", "tpot", "e2e")
Result = dict[str, Any]


class NoResults(Exception):
    """The folder holds no results for a page."""


def write_page(folder: Path, analysis_s: float | None = None) -> Path:
    """Write `report.md` and `report.json` of the results in `folder`; return the former's path.

    The recording is analysed if that was not done yet, for at most `analysis_s` seconds; None: no
    limit. Raises `NoResults`.
    """
    about = _read(folder / "machine.json")
    if about is None:
        raise NoResults(f"{folder} holds no results of a check")
    read: dict[str, Result] = {stage: kept(folder, stage) for stage in STAGES}
    stages = {stage: found for stage, found in read.items() if found}
    if (folder / RECORDING).exists() and "truth" in stages:
        stages["truth"]["analysis"] = _analysis(folder, analysis_s)
    verdict = [line for stage, found in stages.items() for line in _verdict(stage, found)]
    report = {"verdict": verdict, "about": about, **stages}
    (folder / "report.json").write_text(json.dumps(report, indent=1))
    page = folder / "report.md"
    page.write_text("\n".join(_lines(verdict, about, stages)) + "\n")
    return page


def kept(folder: Path, stage: str) -> Result:
    """The stored result of a stage; empty if there is none."""
    return _read(folder / f"{stage}.json") or {}


def _read(path: Path) -> Result | None:
    if not path.exists():
        return None
    found: Result = json.loads(path.read_text(encoding="utf-8"))
    return found


def _analysis(folder: Path, seconds: float | None) -> Result:
    """The analysis of the recording, in a process that can be stopped."""
    file = folder / ANALYSIS
    if (found := _read(file)) is not None:
        return found
    working = multiprocessing.get_context("spawn").Process(target=_analyse, args=(folder, file))
    working.start()
    working.join(seconds)
    if working.is_alive():
        working.terminate()
        working.join()
        return {"failed": f"no time was left: foretell check --report {folder.name} does it"}
    return _read(file) or {"failed": "the analysis ended with an error"}


def _analyse(folder: Path, file: Path) -> None:
    # Imported here, so that only this process loads what replays need.
    from foretell.tools.check.truth import analyse

    try:
        found = analyse(folder)
    except ValueError as error:
        found = {"failed": str(error)}
    file.write_text(json.dumps(found, indent=1))


# --- the verdict ---------------------------------------------------------------------------------


def _verdict(stage: str, found: Result) -> list[str]:
    """The verdict on a stage, in a sentence or two."""
    if "left_out" in found:
        return [f"*{stage}* was left out: {found['left_out']}."]
    try:
        lines = _VERDICTS[stage](found)
    except (KeyError, TypeError, ZeroDivisionError):
        return [f"*{stage}* found nothing: {found.get('failed', 'its result is not whole')}."]
    if "failed" in found:
        lines.append(f"*{stage}* was not whole: {found['failed']}.")
    return lines


def _of_attach(found: Result) -> list[str]:
    engines = found["engines"]
    attached = sum(engine["attached"] for engine in engines)
    version = engines[0].get("engine_version", "an engine of unknown version")
    missing = sorted({name for engine in engines for name in engine.get("not_modelled", ())})
    limits = f"not modelled: {', '.join(missing)}" if missing else "nothing is approximated"
    return [f"The plugin attached to {attached} of {len(engines)} engines of {version}; {limits}."]


def _of_cost(found: Result) -> list[str]:
    own, step = found["own"], found["step"]
    ratio = step["more_us"] / step["without_us"]
    half = step["half_width_us"] / step["without_us"]
    return [
        f"The plugin costs the engine's thread {own['more_us']:.0f} ± {own['half_width_us']:.0f} "
        f"µs a step of {step['without_us'] / 1e3:.1f} ms with {found['running_mean']:.0f} "
        f"requests; steps are {ratio:+.1%} ± {half:.1%} longer."
    ]


def _of_truth(found: Result) -> list[str]:
    errors = found["as_deployed"]["foretell"]
    kinds = ", ".join(
        f"{_name(kind)} {errors[kind]['median']:.0%} (P90 {errors[kind]['p90']:.0%})"
        for kind in _KINDS
    )
    lines = [f"As deployed, with lengths nobody knew, predictions were off by, median: {kinds}."]
    analysed = found.get("analysis", {}).get("errors")
    if analysed:
        true = analysed["true lengths, no profile"]
        lines.append(
            "With true lengths: "
            + ", ".join(f"{_name(kind)} {true[kind]['median']:.1%}" for kind in _KINDS)
            + "."
        )
    return lines


def _of_cluster(found: Result) -> list[str]:
    policies = found["policies"]
    own = policies[REFERENCE]
    lines = []
    for metric in ("ttft_p99_s", "e2e_mean_s"):
        rivals = {name: each[metric]["mean"] for name, each in policies.items()}
        del rivals[REFERENCE]
        best = min(rivals, key=rivals.__getitem__)
        ratio = own[metric]["mean"] / rivals[best]
        beyond = policies[best][metric]
        chance = ""
        if "less_reference" in beyond:
            within = abs(beyond["less_reference"]) <= beyond["half_width"]
            chance = ", within chance" if within else ", beyond chance"
        lines.append(
            f"{_TITLES[metric].removesuffix(', s')} of `{REFERENCE}` is {ratio:.2f} times that of "
            f"`{best}`, the best other policy ({found['rounds']} rounds{chance})."
        )
    return lines


def _of_beside(found: Result) -> list[str]:
    alone = found["contenders"]["online alone"]["ttft_p99_s"]
    parts = []
    for name, each in found["contenders"].items():
        if name != "online alone":
            times = each["ttft_p99_s"] / alone
            parts.append(f"{times:.2f} times with {each['offline_per_s']:.2f} offline/s by {name}")
    return [f"P99 TTFT of online requests beside offline ones: {'; '.join(parts)}."]


_VERDICTS: dict[str, Callable[[Result], list[str]]] = {
    "attach": _of_attach,
    "cost": _of_cost,
    "truth": _of_truth,
    "cluster": _of_cluster,
    "beside": _of_beside,
}


def _name(kind: str) -> str:
    return "e2e" if kind == "e2e" else kind.upper()


# --- the page ------------------------------------------------------------------------------------


def _lines(verdict: Sequence[str], about: Result, stages: dict[str, Result]) -> Iterable[str]:
    yield "# What Foretell is worth on this machine\n"
    yield from (f"- {line}" for line in verdict)
    yield "\n## What was measured\n"
    yield from _facts(about)
    for stage, table in _TABLES.items():
        found = stages.get(stage, {})
        try:
            lines = list(table(found))
        except (KeyError, TypeError, StopIteration):
            continue  # the verdict says that it did not finish
        yield ""
        yield from lines


def _facts(about: Result) -> Iterable[str]:
    machine, gpus = about["machine"], about["gpus"]
    names = sorted({f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB" for gpu in gpus})
    device = "no GPU"
    if gpus:
        device = f"{len(gpus)} x {'; '.join(names)}, driver {gpus[0]['driver']}"
    label = "as deployed" if gpus else "laboratory: vLLM computes on the CPU"
    packages = ", ".join(f"{k} {v}" for k, v in machine["packages"].items() if v != "absent")
    shared = about["engines_per_gpu"]
    yield f"- *{label}*; {about['date_utc']} UTC; Foretell {about['foretell']}"
    yield (
        f"- {device}; {machine['cpu']}, {machine['cores']} cores, load average before "
        f"{machine['load_1min']}"
    )
    yield f"- Python {machine['python']}; {packages}"
    yield (
        f"- {about['engines']} engines of {about['model']}"
        + (f", {shared} of which share a GPU" if shared > 1 else "")
        + f"; they started in {about['engines_started_s']} s"
    )
    yield f"- `{about['engine_args'].strip()}`"


def _truth_table(found: Result) -> Iterable[str]:
    load = found["load"]
    yield "## Predictions\n"
    yield (
        f"{load['measured']} requests at {load['rate_per_s']} a second, bursty, of a capacity of "
        f"{load['capacity_per_s']}; |predicted - actual| / actual, median (P90).\n"
    )
    rows = {"as deployed: hidden lengths, live": found["as_deployed"]["foretell"]}
    analysed = found.get("analysis", {})
    rows |= {f"replayed: {name}": each for name, each in analysed.get("errors", {}).items()}
    simple = {k: v for k, v in found["as_deployed"].items() if k != "foretell"}
    rows |= {f"simple rule `{name}`, true lengths": each for name, each in simple.items()}
    yield markdown_table(
        ("", *map(_name, _KINDS)),
        ((name, *(_error(each.get(kind)) for kind in _KINDS)) for name, each in rows.items()),
    )
    if "failed" in analysed:
        yield f"\nNot replayed: {analysed['failed']}."


def _error(each: Result | None) -> str:
    return f"{each['median']:.1%} ({each['p90']:.0%})" if each else ""


def _cluster_table(found: Result) -> Iterable[str]:
    yield "## Policies\n"
    yield (
        f"{found['rounds']} rounds of {found['seconds_a_run']} s at {found['rate_per_s']} requests "
        f"a second ({found['utilisation']:.0%} of the capacity, bursty), the same for all; lengths "
        "are hidden. In parentheses: what the simulator says of the same requests; ±: half the 95% "
        f"interval of the difference to `{REFERENCE}`.\n"
    )
    yield markdown_table(
        ("policy", *_TITLES.values()),
        (
            (f"`{name}`", *(_cell(found, name, each, metric) for metric in METRICS))
            for name, each in found["policies"].items()
        ),
    )


def _cell(found: Result, name: str, each: Result, metric: str) -> str:
    own = each[metric]
    simulated = found.get("simulated", {}).get(name)
    text = f"{own['mean']:.3f}"
    if "half_width" in own:
        text += f" ± {own['half_width']:.3f}"
    return text + (f" ({simulated[metric]:.3f})" if simulated else "")


def _beside_table(found: Result) -> Iterable[str]:
    yield "## Online beside offline\n"
    yield (
        f"{found['rounds']} rounds of {found['seconds_a_run']} s at {found['rate_per_s']} online "
        "requests a second, at one engine.\n"
    )
    columns = ("ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s")
    yield markdown_table(
        ("", "mean TTFT, ms", "P99 TTFT", "mean TPOT", "P99 TPOT", "offline/s"),
        (
            (name, *(f"{1e3 * each[c]:.1f}" for c in columns), f"{each['offline_per_s']:.2f}")
            for name, each in found["contenders"].items()
        ),
    )


_TABLES: dict[str, Callable[[Result], Iterable[str]]] = {
    "truth": _truth_table,
    "cluster": _cluster_table,
    "beside": _beside_table,
}
