"""How far is the twin from real GPUs?

DATA is any folder that holds recorded runs and the kernel tables of their GPUs, as LLMServingSim
publishes both (`bench/examples` and `profiler/perf` of its repository), and the datasets of the
runs (`workloads`) where their prompts shall be known. Nearly all of the time goes into the runs
without a profile.
"""

import argparse
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.report import Benchmark, Blocks, Numbers, markdown_table
from foretell.model import GpuProfile
from foretell.sim.accuracy import METRICS
from foretell.tools.accuracy.recorded_run import RecordedRun, read_run, requests_of
from foretell.tools.accuracy.replayed import AccuracyOptions, evaluate
from foretell.tools.profiles.imports import ProfileError, import_profile
from foretell.tools.profiles.options import ImportOptions
from foretell.tools.profiles.sizes import known_device

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes",
    paths={"DATA": "folder of recorded runs, kernel tables and datasets"},
)
LOOKED_AT = {
    "5a6f2a0b09d5eb84bd75b30ed625d883c22b4bcc0a839cd1128ae42f74ecc90d",
    "0175b31b0ddc02b97eb6da1410dc80fc5900b8785c988e90cacee1021d644682",
    "7751686bb9f927f5cd39adf901b2d0755b8f1a1182561c3df5446c927f95342f",
    "bde98fa878f59f1b3b8b8f9b3b09f8e1ae36be6a8f56040b9a80a97d00a7dc7b",
}
"""SHA-256 of the requests of the runs that were looked at while the twin was built."""
TABLES = "perf"
"""Folder below which a source keeps its tables, as DEVICE/MODEL/PRECISION/tpN."""


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded run, and what it ran on."""

    run: RecordedRun
    device: str
    profile: GpuProfile
    known_device: str
    looked_at: bool
    published: dict[str, float]
    """LLMServingSim's own errors of the means, from its `summary.txt`, if there is one."""

    @property
    def title(self) -> str:
        """The model, the device and the parallelism."""
        ranks = self.profile.tensor_parallel, self.profile.data_parallel
        split = "".join(f", {n} {way}" for n, way in zip(ranks, ("TP", "DP"), strict=True) if n > 1)
        return f"{self.run.model.rpartition('/')[2]}, {self.device}{split}"


def cases(data: Path) -> Iterator[Case]:
    """Every run below `data` for which there are tables of its device and model.

    What is left out is said, and why.
    """
    for meta in sorted(data.rglob("meta.json")):
        folder = meta.parent
        try:
            run, requests = read_run(folder), requests_of(folder)
        except ValueError as error:  # perhaps the meta.json of something else
            print(f"left out: {error}")
            continue
        options = tables_of(run, folder, data)
        if options is None:
            print(f"left out: {folder}: there are no tables of its device and model")
            continue
        try:
            profile = import_profile(options)
        except ProfileError as error:
            print(f"left out: {folder}: {error}")
            continue
        yield Case(
            run,
            options.device,
            profile,
            known_device(folder.relative_to(data).parts),
            hashlib.sha256(requests).hexdigest() in LOOKED_AT,
            published(folder.parent / "validation" / "summary.txt"),
        )


def tables_of(run: RecordedRun, folder: Path, data: Path) -> ImportOptions | None:
    """How to import the tables below `data` that were measured for `run`."""
    tensor_parallel = int(run.engine_kwargs.get("tensor_parallel_size") or 1)
    for tables in sorted({path.parent for path in data.rglob("dense.csv*")}):
        parts = tables.relative_to(data).parts
        device = parts[parts.index(TABLES) + 1] if TABLES in parts[:-1] else ""
        if device not in folder.parts or run.model.rpartition("/")[2] not in parts:
            continue
        if parts[-1] == f"tp{tensor_parallel}":
            ranks = int(run.engine_kwargs.get("data_parallel_size") or 1)
            return ImportOptions("llmservingsim", tables, device, data_parallel=ranks)
    return None


def published(summary: Path) -> dict[str, float]:
    """The errors of the means of TTFT, TPOT and e2e latency in a `summary.txt`, if it exists."""
    names = {"TTFT Mean": "ttft", "TPOT Mean": "tpot", "Latency Mean": "e2e"}
    found = {}
    for line in summary.read_text().splitlines() if summary.is_file() else ():
        for title, name in names.items():
            if line.startswith(title):
                actual, simulated = (float(cell) for cell in line.split()[2:4])
                found[name] = (simulated - actual) / actual
    return found


def replays(case: Case, quick: bool) -> dict[str, AccuracyOptions]:
    """How a case is replayed, by name."""
    with_tables = {"profile": AccuracyOptions(case.profile)}
    return with_tables | (
        {} if quick else {"no profile": AccuracyOptions(device=case.known_device)}
    )


def measure(options: argparse.Namespace) -> Numbers:
    """Replay the runs with tables and without."""
    reports: Numbers = {}
    for case in cases(options.data):
        found: Numbers = {"looked_at": case.looked_at, "LLMServingSim": case.published}
        for name, how in replays(case, options.quick).items():
            print(f"{case.title}: {name}", flush=True)
            found[name] = evaluate(case.run, how).report()
        alike = sum(title.partition(", run ")[0] == case.title for title in reports)
        reports[f"{case.title}, run {alike + 1}" if alike else case.title] = found
    if not reports:
        raise SystemExit(f"{options.data} holds no recorded run with tables of its device")
    return {"runs": reports}


def tables(numbers: Numbers) -> Blocks:
    """The profile and no profile, beside what LLMServingSim published."""
    rows = []
    for title, report in numbers["runs"].items():
        run = f"{title}, {'looked at' if report['looked_at'] else 'unseen'}"
        for name in ("profile", "no profile"):
            if name not in report:
                continue
            found = report[name]
            cells = [
                " / ".join(f"{found[m][f'{at}_error']:+.1%}" for at in ("mean", "p50", "p99"))
                for m in METRICS
            ]
            each = " / ".join(f"{found[m]['mape']:.1%}" for m in METRICS)
            rows.append([run, name, *cells, each])
        theirs = [f"{report['LLMServingSim'][m]:+.1%}" for m in METRICS if report["LLMServingSim"]]
        if theirs:
            rows.append([run, "LLMServingSim's own", *theirs, ""])
    errors = [f"{name} mean / p50 / p99" for name in ("TTFT", "TPOT", "e2e")]
    header = ("run", "step time", *errors, "per request: TTFT / TPOT / e2e")
    return {"tables": markdown_table(header, rows)}
