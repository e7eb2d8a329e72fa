"""How far is the twin from real GPUs?

DATA holds LLMServingSim's `bench/examples` and `profiler/perf` below `llmservingsim/`. Nearly all
of the time goes into the runs without a profile.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.accuracy.make_profiles import SOURCES
from bench.report import Benchmark, Blocks, Numbers
from tools.accuracy.plot import scatter
from tools.accuracy.replayed import AccuracyOptions, Evaluation, evaluate
from tools.files import read_bytes
from tools.profiles.imports import ImportOptions, import_profile, profile_of, write_profile

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes",
    paths={"DATA": "folder of the published runs and tables"},
)
EXAMPLES = Path("llmservingsim/bench/examples/RTXPRO6000")
DEVICE = "RTXPRO6000"
WORKLOADS = {"Llama-3.1-8B": "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"}
BLOCK = 16
OVERHEAD_S = 1.2e-3  # see the page: read off these very runs, so no variant with it is a result


@dataclass(frozen=True, slots=True)
class Case:
    """One published run."""

    folder: str
    model: str
    engine: str

    @property
    def profile(self) -> str:
        """The shipped profile of the same device, model and parallelism."""
        return f"{DEVICE}/{self.model}"


CASES = (
    Case("Llama-3.1-8B", "Llama-3.1-8B", "one GPU"),
    Case("Qwen3-32B", "Qwen3-32B", "two GPUs, tensor parallel"),
    Case("Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B", "two ranks, experts shared"),
)


def published(folder: Path) -> dict[str, float]:
    """LLMServingSim's own errors of the means, from its `summary.txt`."""
    names = {"TTFT Mean": "ttft", "TPOT Mean": "tpot", "Latency Mean": "e2e"}
    found = {}
    for line in (folder / "validation" / "summary.txt").read_text().splitlines():
        for title, name in names.items():
            if line.startswith(title):
                actual, simulated = (float(cell) for cell in line.split()[2:4])
                found[name] = (simulated - actual) / actual
    return found


def without_spread(data: Path, case: Case, scratch: Path) -> str:
    """The case's profile imported without the table of unequal contexts, as a file's name."""
    source = next(s for s in SOURCES if (s.device, s.model) == (DEVICE, case.model))
    # As in the source, where the last folder names the degree of tensor parallelism.
    folder = scratch / case.model / source.path.name
    folder.mkdir(parents=True)
    for table in (data / source.path).iterdir():
        if not table.name.startswith("skew"):
            (folder / table.name).write_bytes(table.read_bytes())
    path = scratch / f"{case.model}.json"
    write_profile(import_profile(replace(source, path=folder)), path)
    return str(path)


def from_aiconfigurator(data: Path, case: Case, scratch: Path) -> str:
    """A profile of the same device from another source, as a file's name; empty: it has none."""
    if case.model != "Llama-3.1-8B":
        return ""
    path = scratch / f"{case.model}-aiconfigurator.json"
    folder = data / "aiconfigurator" / "rtx_pro_6000_server"
    options = ImportOptions("aiconfigurator", folder, DEVICE, case.model)
    write_profile(import_profile(options), path)
    return str(path)


def without_hits(data: Path, case: Case, scratch: Path) -> Path | None:
    """The run with each prompt less what the prefix cache held of it; None: no token ids known.

    A stand-in for a twin with a prefix cache: contexts come out too short by as much.
    """
    path = data / "llmservingsim" / "workloads" / WORKLOADS.get(case.model, "-")
    if not path.is_file():
        return None
    seen: set[tuple[int, ...]] = set()
    hits = {}
    for index, line in enumerate(read_bytes(path).splitlines()):
        ids = json.loads(line)["input_tok_ids"]
        blocks = [tuple(ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)]
        most = (len(ids) - 1) // BLOCK  # the last token is always computed
        found = next((i for i, block in enumerate(blocks[:most]) if block not in seen), most)
        hits[f"bench-{index}"] = found * BLOCK
        seen.update(blocks)
    source, folder = data / EXAMPLES / case.folder / "vllm", scratch / f"{case.model}-hits"
    folder.mkdir()
    (folder / "meta.json").write_bytes((source / "meta.json").read_bytes())
    rows = [json.loads(x) for x in read_bytes(source / "requests.jsonl.gz").splitlines()]
    for row in rows:
        row["input_toks"] -= hits[row["request_id"]]
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def with_overhead(case: Case, scratch: Path) -> str:
    """The case's profile with `OVERHEAD_S` on every step, as a file's name."""
    profile = profile_of(case.profile)
    assert profile.tables is not None
    path = scratch / f"{case.model}-overhead.json"
    tables = replace(profile.tables, overhead_s=OVERHEAD_S)
    write_profile(replace(profile, tables=tables), path)
    return str(path)


def linear_only(case: Case, scratch: Path) -> str:
    """The case's profile without its tables, as a file's name."""
    path = scratch / f"{case.model}-linear.json"
    write_profile(replace(profile_of(case.profile), tables=None), path)
    return str(path)


def evaluate_all(data: Path, scratch: Path) -> tuple[Numbers, list[tuple[str, Evaluation]]]:
    """Every report by case and variant, and the evaluations to plot."""
    reports: Numbers = {}
    plots = []
    for case in CASES:
        run = data / EXAMPLES / case.folder
        exact = AccuracyOptions(profile=case.profile)
        variants = {
            "profile": exact,
            "no profile": AccuracyOptions(device=DEVICE),
            "linear": AccuracyOptions(profile=linear_only(case, scratch)),
            "no spread": AccuracyOptions(profile=without_spread(data, case, scratch)),
            "sync": replace(exact, async_scheduling=False),
            "overhead": AccuracyOptions(profile=with_overhead(case, scratch)),
        }
        if other := from_aiconfigurator(data, case, scratch):
            variants["aiconfigurator"] = AccuracyOptions(profile=other)
        reports[case.model] = {"LLMServingSim": published(run)}
        folders = dict.fromkeys(variants, run / "vllm")
        if hits := without_hits(data, case, scratch):
            for name, of in (("hits", "profile"), ("hits, overhead", "overhead")):
                folders[name], variants[name] = hits, variants[of]
        for name, options in variants.items():
            print(f"{case.model}: {name}", flush=True)
            found = evaluate(folders[name], options)
            reports[case.model][name] = found.report()
            if name in {"profile", "no profile"}:
                plots.append((f"{case.model}, {name}", found))
    return reports, plots


def percent(value: float) -> str:
    return f"{value:+.1%}"


def main_table(reports: Numbers) -> list[str]:
    """Markdown: the profile and no profile, beside what LLMServingSim published."""
    lines = [
        "| run | step time | TTFT mean / p50 / p99 | TPOT mean / p50 / p99 "
        "| e2e mean / p50 / p99 | per request: TTFT / TPOT / e2e |",
        "|---|---|---|---|---|---|",
    ]
    for case in CASES:
        report = reports[case.model]
        for name, title in (("profile", "profile"), ("no profile", "no profile")):
            found = report[name]
            cells = [
                " / ".join(percent(found[m][f"{at}_error"]) for at in ("mean", "p50", "p99"))
                for m in ("ttft", "tpot", "e2e")
            ]
            each = " / ".join(f"{found[m]['mape']:.1%}" for m in ("ttft", "tpot", "e2e"))
            lines.append(
                f"| {case.model}, {case.engine} | {title} | {' | '.join(cells)} | {each} |"
            )
        theirs = [percent(report["LLMServingSim"][m]) for m in ("ttft", "tpot", "e2e")]
        lines.append(f"| {case.model} | LLMServingSim's own | {' | '.join(theirs)} | |")
    return lines


def variant_table(reports: Numbers) -> list[str]:
    """Markdown: errors of the means with one part left out at a time."""
    titles = {
        "profile": "all of it",
        "no spread": "without the cost of unequal contexts",
        "sync": "without the two steps in flight of async scheduling",
        "linear": "six coefficients instead of tables",
        "hits": "with the prefix-cache hits that the run had",
        "overhead": "with 1.2 ms of host time on every step",
        "hits, overhead": "with both",
        "aiconfigurator": "aiconfigurator's tables: same GPU, vLLM 0.24, no mixed attention",
    }
    lines = ["| TTFT, TPOT, e2e mean | " + " | ".join(case.model for case in CASES) + " |"]
    lines.append("|---|" + "---|" * len(CASES))
    for name, title in titles.items():
        cells = [
            ", ".join(
                percent(reports[case.model][name][m]["mean_error"]) for m in ("ttft", "tpot", "e2e")
            )
            if name in reports[case.model]
            else ""
            for case in CASES
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def measure(options: argparse.Namespace) -> Numbers:
    """Replay the runs with every variant, and plot two of them."""
    with TemporaryDirectory() as scratch:
        reports, plots = evaluate_all(options.data, Path(scratch))
    for case in CASES:
        reports[case.model]["linear"]["profile"] = case.profile
    if options.write:
        scatter(plots, BENCH.result(".png"))
    return {"runs": reports}


def tables(numbers: Numbers) -> Blocks:
    """The errors, those of the variants, and the factors found without a profile."""
    reports = numbers["runs"]
    factors = ", ".join(
        f"{case.model} {reports[case.model]['no profile']['calibration_factors']}" for case in CASES
    )
    return {
        "tables": "\n".join(main_table(reports)),
        "variants": "\n".join(variant_table(reports)),
        "factors": f"Factors found: {factors}.",
    }


if __name__ == "__main__":
    BENCH.main(measure, tables)
