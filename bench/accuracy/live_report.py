"""The page, the picture and the table of a live measurement."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import Blocks, Numbers, machine_line, markdown_table
from foretell.tools.live.report import COLUMNS, FORETELL, LATENCIES, Pairs, cells
from foretell.tools.pictures import figure, save

TITLES = {
    FORETELL: "Foretell",
    "recent_mean": "mean of the last 32",
    "linear_queue": "linear in the queue",
    "linear_queue_relative": "linear in the queue, relative",
    "roofline": "roofline, no queue",
    "roofline_relative": "roofline, no queue, relative",
    "linear_all_relative": "linear in all of it, relative",
}
_PLOTTED = (FORETELL, "recent_mean", "linear_queue", "roofline")
_NAMES = {"ttft": "TTFT", "e2e": "e2e"}


def error_table(found: Mapping[str, Any], titles: Mapping[str, str] | None = None) -> str:
    """Markdown: one row per predictor or variant, absolute errors and the signed median."""
    header = ["", *(f"{_NAMES[kind]} {column}" for kind in LATENCIES for column in COLUMNS)]
    rows = [[(titles or {}).get(name, name), *cells(kinds)] for name, kinds in found.items()]
    return markdown_table(header, rows)


def tables(result: Numbers) -> Blocks:
    """Errors, the run, the errors of variants, and where the time goes outside the twin."""
    analysis = result["analysis"]
    levels = ("p10", "p50", "p90")
    parts = [[name, *(row[at] for at in levels)] for name, row in analysis["milliseconds"].items()]
    speed = ", ".join(f"{analysis['speed'][at]:.2f}" for at in levels)
    return {
        "tables": error_table(result["errors"], TITLES),
        "run": f"{_run_table(result)}\n{_placement(result)}",
        "variants": error_table(analysis["errors"]),
        "parts": f"Around the twin, milliseconds:\n\n{markdown_table(['', *levels], parts)}\n"
        f"The steps of a request's life took {speed} of what the calibrated model said at its "
        "arrival (p10, p50, p90).",
    }


def _most(load: Mapping[str, Any]) -> str:
    capacity = load["capacity_per_s"]  # None where it was not measured
    return f" of at most {capacity:.2f}/s" if capacity else ""


def _run_table(result: Mapping[str, Any]) -> str:
    load, predictor = result["load"], result["predictor"]
    lengths = load["lengths"]
    rows = [
        ["machine", machine_line(result["machine"])],
        ["busy with others meanwhile", f"{result['others_cores']:.2f} cores"],
        ["engine", f"{result['engine_version']}, {result['engine']}"],
        [
            "load",
            f"{load['measured']} requests in {load['measured_s']:.0f} s behind {load['warm_up']} "
            f"to warm up, seed {load['seed']}; {load['rate_per_s']:.2f}/s{_most(load)}; Gamma gaps "
            "in phases of half to 1.7 times the mean rate",
        ],
        [
            "lengths",
            f"prompts {lengths['least_prompt']} to {lengths['most_prompt']}, log-uniform, "
            f"{load['prompt_tokens'] / load['measured']:.0f} on average; outputs "
            f"{lengths['least_output']} to {lengths['most_output']}, log-normal, "
            f"{load['output_tokens'] / load['measured']:.0f} on average",
        ],
        ["found a queue at arrival", f"{result['analysis']['waited']} requests"],
        [
            "calibration",
            f"{predictor['calibration_steps']} steps at the end, mean error of a step one ahead "
            f"{predictor['step_error']:.1%}",
        ],
        ["step time", _step_time(result["analysis"]["microseconds_per"])],
    ]
    return markdown_table(["", ""], rows).replace("|:--|--:|", "|:--|:--|")


def _step_time(us: Mapping[str, float]) -> str:
    tokens = us["step"] / us["prefill_tokens"] if us["prefill_tokens"] else 0.0
    return (
        f"as last learned: {us['step'] / 1e3:.1f} ms a step, {us['prefill_tokens']:.0f} us a "
        f"prompt token (a step is {tokens:.0f} of them), {us['prefill_pairs'] * 1e3:.0f} ns a "
        f"pair of prompt tokens, {us['prefill_seqs'] / 1e3:.1f} ms a prompt, "
        f"{us['decode_seqs']:.0f} us a decoding sequence, "
        f"{us['decode_pairs'] * 1e3:.0f} ns a token of its context"
    )


def _placement(result: Mapping[str, Any]) -> str:
    if result["pinned"]:
        return (
            "The thread that runs the model has a core to itself as far as our processes go; the "
            "engine's other threads, its API server, the predictor and the client share the rest."
        )
    return "Engine, API server, predictor and client share the cores as they come."


def scatter(pairs: Mapping[str, Mapping[str, Pairs]], path: Path) -> None:
    """Predicted against actual: a row per kind of latency, a column per predictor."""
    picture = figure(12.0, 6.2)
    axes = picture.subplots(len(LATENCIES), len(_PLOTTED), sharex="row", sharey="row")
    for row, kind in zip(axes, LATENCIES, strict=True):
        low, high = _range([pairs[name][kind] for name in _PLOTTED])
        for axis, name in zip(row, _PLOTTED, strict=True):
            found = pairs[name][kind]
            predicted = [min(high, max(low, p)) for p in found.predicted_s]
            axis.plot([low, high], [low, high], color="0.6", linewidth=0.8)
            axis.scatter(found.actual_s, predicted, s=5, alpha=0.5, linewidths=0)
            axis.set(xscale="log", yscale="log", title=f"{TITLES[name]}: {_NAMES[kind]}")
            axis.set_xlabel("actual, s")
        row[0].set_ylabel("predicted, s")
    save(picture, path)


def _range(columns: Sequence[Pairs]) -> tuple[float, float]:
    """The actual latencies' range; predictions beyond twice that are drawn at its edge."""
    actual = columns[0].actual_s
    return min(actual) / 2, max(actual) * 2
