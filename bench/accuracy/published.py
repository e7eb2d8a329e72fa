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
from bench.report import Benchmark, Blocks, Numbers, markdown_table
from foretell.latency.profile_json import profile_from_json, profile_to_json
from foretell.model import GpuProfile
from foretell.sim.accuracy import METRICS
from tools.accuracy.plot import scatter
from tools.accuracy.recorded_run import RecordedRun, read_run
from tools.accuracy.replayed import AccuracyOptions, Evaluation, evaluate
from tools.files import read_bytes
from tools.profiles.imports import import_profile, profile_of
from tools.profiles.options import ImportOptions

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes",
    paths={"DATA": "folder of the published runs and tables"},
)
EXAMPLES = Path("llmservingsim/bench/examples/RTXPRO6000")
DEVICE = "RTXPRO6000"
WORKLOAD = Path("llmservingsim/workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl.gz")
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


def without_spread(data: Path, case: Case) -> GpuProfile:
    """The case's profile imported without the table of unequal contexts."""
    source = next(s for s in SOURCES if (s.device, s.model) == (DEVICE, case.model))
    with TemporaryDirectory() as scratch:
        # As in the source, where the last folder names the degree of tensor parallelism.
        folder = Path(scratch) / source.path.name
        folder.mkdir()
        for table in (data / source.path).iterdir():
            if not table.name.startswith("skew"):
                (folder / table.name).symlink_to(table.resolve())
        return imported(replace(source, path=folder))


def imported(options: ImportOptions) -> GpuProfile:
    """The profile as a file holds it, with fewer digits."""
    return profile_from_json(profile_to_json(import_profile(options)))


def with_hits(run: RecordedRun, workload: Path) -> RecordedRun:
    """The run with each prompt less what the prefix cache held of it, by the workload's token ids.

    A stand-in for a twin with a prefix cache: contexts come out too short by as much.
    """
    seen: set[tuple[int, ...]] = set()
    hits = {}
    for index, line in enumerate(read_bytes(workload).splitlines()):
        ids = json.loads(line)["input_tok_ids"]
        blocks = [tuple(ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)]
        most = (len(ids) - 1) // BLOCK  # the last token is always computed
        found = next((i for i, block in enumerate(blocks[:most]) if block not in seen), most)
        hits[f"bench-{index}"] = found * BLOCK
        seen.update(blocks)
    requests = [
        replace(r, prompt_tokens=r.prompt_tokens - hits[r.request_id]) for r in run.requests
    ]
    return replace(run, requests=requests)


def variants_of(
    data: Path, case: Case, run: RecordedRun
) -> dict[str, tuple[RecordedRun, AccuracyOptions]]:
    """What is replayed of a case, by name: the run as it was or as it might have been, and how."""
    profile = profile_of(case.profile)
    assert profile.tables is not None
    slower = replace(profile, tables=replace(profile.tables, overhead_s=OVERHEAD_S))
    exact, overhead = AccuracyOptions(profile), AccuracyOptions(slower)
    variants = {
        "profile": (run, exact),
        "no profile": (run, AccuracyOptions(device=DEVICE)),
        "linear": (run, AccuracyOptions(replace(profile, tables=None))),
        "no spread": (run, AccuracyOptions(without_spread(data, case))),
        "sync": (run, replace(exact, async_scheduling=False)),
        "overhead": (run, overhead),
    }
    if case.model == "Llama-3.1-8B":  # the only one with other tables, and with token ids
        folder = data / "aiconfigurator" / "rtx_pro_6000_server"
        other = imported(ImportOptions("aiconfigurator", folder, DEVICE, case.model))
        hits = with_hits(run, data / WORKLOAD)
        variants["aiconfigurator"] = (run, AccuracyOptions(other))
        variants |= {"hits": (hits, exact), "hits, overhead": (hits, overhead)}
    return variants


def evaluate_all(data: Path) -> tuple[Numbers, list[tuple[str, Evaluation]]]:
    """Every report by case and variant, and the evaluations to plot."""
    reports: Numbers = {}
    plots = []
    for case in CASES:
        folder = data / EXAMPLES / case.folder
        reports[case.model] = {"LLMServingSim": published(folder)}
        for name, (run, options) in variants_of(data, case, read_run(folder / "vllm")).items():
            print(f"{case.model}: {name}", flush=True)
            found = evaluate(run, options)
            reports[case.model][name] = found.report()
            if name in {"profile", "no profile"}:
                plots.append((f"{case.model}, {name}", found))
    return reports, plots


def percent(value: float) -> str:
    return f"{value:+.1%}"


def main_table(reports: Numbers) -> str:
    """The profile and no profile, beside what LLMServingSim published."""
    rows = []
    for case in CASES:
        report = reports[case.model]
        for name in ("profile", "no profile"):
            found = report[name]
            cells = [
                " / ".join(percent(found[m][f"{at}_error"]) for at in ("mean", "p50", "p99"))
                for m in METRICS
            ]
            each = " / ".join(f"{found[m]['mape']:.1%}" for m in METRICS)
            rows.append([f"{case.model}, {case.engine}", name, *cells, each])
        theirs = [percent(report["LLMServingSim"][m]) for m in METRICS]
        rows.append([case.model, "LLMServingSim's own", *theirs, ""])
    errors = [f"{name} mean / p50 / p99" for name in ("TTFT", "TPOT", "e2e")]
    return markdown_table(("run", "step time", *errors, "per request: TTFT / TPOT / e2e"), rows)


def variant_table(reports: Numbers) -> str:
    """Errors of the means with one part left out at a time."""
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

    def cell(found: Numbers | None) -> str:
        return ", ".join(percent(found[m]["mean_error"]) for m in METRICS) if found else ""

    rows = [
        [title, *(cell(reports[case.model].get(name)) for case in CASES)]
        for name, title in titles.items()
    ]
    return markdown_table(("TTFT, TPOT, e2e mean", *(case.model for case in CASES)), rows)


def measure(options: argparse.Namespace) -> Numbers:
    """Replay the runs with every variant, and plot two of them."""
    reports, plots = evaluate_all(options.data)
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
        "tables": main_table(reports),
        "variants": variant_table(reports),
        "factors": f"Factors found: {factors}.",
    }
