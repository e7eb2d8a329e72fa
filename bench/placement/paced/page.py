"""The tables of `bench.placement.vllm_cluster`."""

from typing import Any

from bench.placement.paced.runs import METRICS
from bench.report import Blocks, Numbers, made_by, markdown_table
from foretell.tools.live.report import FORETELL


def tables(page: Numbers) -> Blocks:
    """For every setting its policies, and the best predictors."""
    lines = [
        made_by(page),
        f"Steps last {page['slowdown']:g} times as long as `{page['profile']}` says; rates are "
        f"{page['utilisation']:.0%} of what full engines could serve. Seconds are the clock's.\n",
    ]
    for name, setting in page["settings"].items():
        if not setting["policies"]:
            continue
        rounds = f"{setting['rounds']} round{'s' * (setting['rounds'] != 1)}"
        lines.append(f"### {name}\n\n{setting['what']}; {rounds}.\n")
        lines.append(_means(setting["policies"]))
        lines.append(_differences(setting["policies"]))
        lines.append(_foretold(setting["foretold"]))
    return {"tables": "\n".join(lines)}


def _means(policies: dict[str, Any]) -> str:
    header = ["", *METRICS.values(), "preemptions", "degraded", "tagger late", "steps late"]
    header += ["cores busy", "load average"]
    targets = any(one["within"] is not None for one in policies.values())
    rows = []
    for policy, one in policies.items():
        others = sum(share for what, share in one["degraded"].items() if what != "tagger")
        row = [f"`{policy}`", *(f"{one[metric]:.2f}" for metric in METRICS)]
        row += [f"{one['preemptions']:.0f}", f"{others:.1%}"]
        row += [f"{one['degraded'].get('tagger', 0.0):.1%}", f"{one['step_lateness']:+.1%}"]
        row += [f"{one['cores_busy']:.2f}", f"{one['load_1min']:.1f}"]
        rows.append([*row, f"{one['within']:.0%}"] if targets else row)
    return markdown_table([*header, "within targets"] if targets else header, rows)


def _differences(policies: dict[str, Any]) -> str:
    rows = []
    for policy, one in policies.items():
        cells = []
        for found in one["less_reference"].values():
            half = "" if found["half_width"] is None else f" ± {found['half_width']:.2f}"
            cells.append(f"{found['mean']:+.2f}{half}")
        if any(found["mean"] for found in one["less_reference"].values()):
            rows.append([f"`{policy}` less `slo`", *cells])
    return markdown_table(["", *METRICS.values()], rows) if rows else ""


def _foretold(found: dict[str, Any]) -> str:
    """Errors of Foretell, and of the simple predictor with the least median of each kind."""
    rows = []
    for kind, errors in found.items():
        simple = {name: one for name, one in errors.items() if name != FORETELL}
        if FORETELL not in errors:
            continue
        best = sorted(simple, key=lambda name: float(simple[name]["median"]))[:1]
        for name in (FORETELL, *best):
            one = errors[name]
            rows.append(
                (f"{kind}, `{name}`", f"{one['median']:.0%}", f"{one['p90']:.0%}", one["count"])
            )
    return markdown_table(["error of", "median", "P90", "requests"], rows) if rows else ""
