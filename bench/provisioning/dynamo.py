"""How much of the same days does NVIDIA Dynamo's own planner keep within the targets, at what cost?

Dynamo's simulator runs with its real planner on the requests of `provisioning.day`. Its engine is
given this project's step times, so that both simulators simulate the same engine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np

from bench.provisioning import traffic
from bench.provisioning.cluster import ENGINE, PROFILE, engines
from bench.provisioning.day import (
    DAYS,
    HOURS,
    KINDS,
    MEAN_QPS,
    MOST,
    SLO,
    TUNED_COLD_START_S,
    TUNED_DAY,
    WITHIN,
)
from bench.provisioning.dynamo_planners import (
    CANDIDATES,
    DAY_BEFORE,
    EVER,
    FIXED,
    INITIAL,
    Config,
    Planner,
    Timing,
)
from bench.provisioning.dynamo_tables import tables
from bench.provisioning.traffic import Day, Lengths, Rates
from bench.report import BUILD, Benchmark, Numbers
from bench.runs import progress
from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.model import BatchShape
from foretell.model.batch import prefill_pairs
from foretell.policy import make_policy
from foretell.sim import ClusterConfig, simulate
from foretell.tools.pictures import figure, save
from foretell.workload import Arrival

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="30 minutes",
    needs="a package registry for Dynamo, or a Python that has it (`--python`)",
    paths={"RATES": "ServeGen's clients, `*.windows.parquet`", "LENGTHS.csv": "ShareGPT's lengths"},
)
RUNNER = Path(__file__).with_name("dynamo_run.py")
ENVIRONMENT = BUILD / "dynamo"
PACKAGES = (
    ("--no-deps", "ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1"),
    ("--no-deps", "--only-binary=:all:", "aisimulate==0.13.0.dev202610270000000085"),
    (
        *("typing-extensions", "msgspec", "prometheus-client", "pyzmq", "aiohttp", "zstandard"),
        *("tqdm", "pydantic<=2.13.5", "uvloop", "numpy", "packaging", "psutil", "kubernetes<33"),
        *("prometheus-api-client", "filterpy", "pmdarima", "prophet", "scipy", "scikit-learn"),
        *("pandas", "plotly", "kubernetes_asyncio", "grpcio", "protobuf", "aiofiles", "pyyaml"),
    ),
)
"""What pip installs, call by call: all that the packages name would be a GPU's software too."""
QUIET = {"DYN_LOG": "error", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""For the other Python: threads of small matrices only wait for each other."""

ROUTER = "kv_router"
"""Dynamo's own: it sends to the worker with the least work. Round robin keeps less."""
TYPICAL = BatchShape(decode_seqs=24, decode_pairs=8000)
"""The step beside which a chunk of a prompt is timed."""

CAPACITY_QPS = (1.6, 1.8, 2.0, 2.2, 2.4)
CAPACITY_S = 3600.0
STEADY, STEADY_FROM_S = "steady", 1800.0
"""A third kind of day, at the mean rate throughout; its first half hour is not counted."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of Dynamo's simulator."""

    kind: str
    """One of `KINDS`, `STEADY`, or a constant rate."""
    day: int
    planner: str
    """The name of what is configured; "static": nothing is."""
    config: Config | None = None
    timing: Timing = "added"
    cold_start_s: float = 0.0
    workers: int = INITIAL


class Traces:
    """The requests of each kind of day, as files in Mooncake's format."""

    def __init__(self, rates: Rates, lengths: Lengths, folder: Path) -> None:
        self._rates, self._lengths, self._folder = rates, lengths, folder

    def arrivals(self, kind: str, day: int) -> list[Arrival]:
        """The requests are those of `provisioning.day`."""
        if kind in KINDS:
            shape = Day(day, HOURS, MEAN_QPS, KINDS[kind])
            return traffic.arrivals(self._rates, self._lengths, shape, day)[0]
        if kind == STEADY:
            return poisson(self._lengths, MEAN_QPS, HOURS * 3600.0, day)
        return poisson(self._lengths, float(kind), CAPACITY_S, day)

    def path(self, kind: str, day: int) -> Path:
        """The file, written once."""
        found = self._folder / f"{kind} {day}.jsonl"
        if not found.exists():
            rows = enumerate(self.arrivals(kind, day))
            found.write_text("".join(json.dumps(_row(i, a)) + "\n" for i, a in rows))
        return found


def _row(index: int, arrival: Arrival) -> dict[str, Any]:
    """A request whose prompt nobody shares."""
    return {
        "timestamp": 1e3 * arrival.t_s,
        "input_length": arrival.prompt_tokens,
        "output_length": arrival.output_tokens,
        "hash_ids": [index],
    }


def poisson(lengths: Lengths, qps: float, seconds: float, seed: int) -> list[Arrival]:
    """Requests at a constant rate."""
    draws, now_s, found = Random(f"{seed} steady {qps}"), 0.0, list[Arrival]()
    while (now_s := now_s + draws.expovariate(qps)) < seconds:
        pair = lengths[int(draws.random() * len(lengths))]
        found.append(Arrival(now_s, *pair, f"r{len(found)}"))
    return found


def write_timing(path: Path, timing: Timing) -> None:
    """This project's step times as what Dynamo's engine looks up, in milliseconds: those of decodes
    by (tokens in the cache, mean context), and those of a prompt's chunk, by its tokens.

    Dynamo's engine adds the two. So with "added" a chunk alone is as much too fast as a step
    without tokens lasts, some 20 ms; with "whole" a chunk beside decodes is as much too slow.
    """
    model = profile_step_time(load_profile(PROFILE))

    def decode_ms(cached: float, context: float) -> float:
        seqs = min(max(round(cached / context), 1), ENGINE.max_num_seqs)
        return 1e3 * model.step_s(BatchShape(decode_seqs=seqs, decode_pairs=max(int(cached), 1)))

    def chunk_ms(tokens: int) -> float:
        chunk = BatchShape(1, tokens, prefill_pairs(tokens, 0))
        if timing == "whole":
            return 1e3 * model.step_s(chunk)
        both = replace(chunk, decode_seqs=TYPICAL.decode_seqs, decode_pairs=TYPICAL.decode_pairs)
        return 1e3 * (model.step_s(both) - model.step_s(TYPICAL))

    chunks = [1, *range(8, ENGINE.max_num_scheduled_tokens + 1, 8)]
    contexts = [1, *range(8, 33, 8), *range(48, 97, 16), *range(128, 513, 32)]
    contexts += [*range(576, 1025, 64), 1280, 1536, 2048, 3072, ENGINE.max_model_len]
    cached = np.linspace(0.0, ENGINE.total_blocks * ENGINE.block_size_tokens, 133)
    np.savez(
        path,
        prefill_isl=np.array(chunks, dtype=float),
        prefill_ttft_ms=np.array([chunk_ms(tokens) for tokens in chunks]),
        decode_active_kv_tokens=cached,
        decode_context_length=np.array(contexts, dtype=float),
        decode_itl=np.array([[decode_ms(kv, c) for c in contexts] for kv in cached.tolist()]),
    )


def engine(timing: Path, cold_start_s: float) -> dict[str, Any]:
    """Dynamo's engine with the memory and limits of ours."""
    return {
        "startup_time": cold_start_s or None,
        "num_gpu_blocks_is_explicit": True,
        "engine": {
            "backend": "vllm",
            "num_gpu_blocks": ENGINE.total_blocks,
            "block_size": ENGINE.block_size_tokens,
            "max_model_len": ENGINE.max_model_len,
            "max_num_seqs": ENGINE.max_num_seqs,
            "max_num_batched_tokens": ENGINE.max_num_scheduled_tokens,
            "enable_prefix_caching": False,
            "timing_model": {
                "type": "external",
                "provider": "dynamo_profile",
                "config": {"path": str(timing)},
            },
        },
    }


def install() -> Path:
    """Install Dynamo into an environment of its own, once; returns its Python."""
    python, done = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".installed"
    wanted = "\n".join(" ".join(call) for call in PACKAGES)
    if not (done.exists() and done.read_text() == wanted):
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        for call in PACKAGES:
            subprocess.run([*pip, *call], check=True)
        done.write_text(wanted)
    return python


class Dynamo:
    """The other Python, one run after the other; finished ones are kept in a file."""

    def __init__(self, python: Path, traces: Traces, folder: Path) -> None:
        self._traces, self._folder = traces, folder
        self._log = folder / "dynamo.log"
        self._timings = {timing: folder / f"{timing}.npz" for timing in get_args(Timing)}
        for timing, path in self._timings.items():
            write_timing(path, timing)
        self._kept = {
            json.dumps(each["case"], sort_keys=True): each["found"] for each in _kept_runs()
        }
        self._process = subprocess.Popen(
            [str(python), "-I", str(RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            cwd=folder,
            env={**os.environ, **QUIET},
            text=True,
        )
        self.versions: dict[str, str] = self._answer()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def run(self, case: Case) -> dict[str, Any]:
        """The figures of one case."""
        key = json.dumps(asdict(case), sort_keys=True)
        if key not in self._kept:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(self._question(case)) + "\n")
            self._process.stdin.flush()
            self._kept[key] = self._answer()
            BENCH.kept.parent.mkdir(exist_ok=True)
            with BENCH.kept.open("a") as file:
                kept = {"case": asdict(case), "found": self._kept[key]}
                file.write(json.dumps(kept) + "\n")
        return {**asdict(case), **self._kept[key]}

    def _question(self, case: Case) -> dict[str, Any]:
        config = None if case.config is None else {**EVER, **case.config}
        if config is not None and config.get("load_predictor_warmup_trace") == DAY_BEFORE:
            config["load_predictor_warmup_trace"] = str(self._traces.path(case.kind, case.day - 1))
        return {
            "trace": str(self._traces.path(case.kind, case.day)),
            "engine": engine(self._timings[case.timing], case.cold_start_s),
            "workers": case.workers,
            "router": ROUTER,
            "planner": config,
            "ttft_ms": 1e3 * SLO.ttft_s,
            "itl_ms": 1e3 * SLO.tpot_s,
        }

    def _answer(self) -> dict[str, Any]:
        """The next line that is ours; whatever else is printed is passed over."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit(f"Dynamo's simulator ended:\n{self._log.read_text()[-2000:]}")


def _kept_runs() -> Iterator[dict[str, Any]]:
    if BENCH.kept.exists():
        yield from map(json.loads, BENCH.kept.read_text().splitlines())


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cold-starts", type=float, nargs="+", default=[20, 60, 120, 300])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--python", type=Path, help="A Python that has Dynamo's packages; default: install them."
    )


def measure(options: argparse.Namespace) -> Numbers:
    """Tune, then run every planner on the reported days, and static numbers of workers."""
    rates = traffic.read_rates(options.rates)
    lengths = traffic.read_lengths(options.lengths, ENGINE.max_model_len)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        traces = Traces(rates, lengths, folder)
        dynamo = Dynamo(options.python or install(), traces, folder)
        stack.callback(dynamo.close)
        capacity = list(_capacity(dynamo, traces))
        tuning = _all(dynamo, "tuning", list(_tuning(options.kinds)))
        chosen = {kind: _chosen(tuning, kind) for kind in options.kinds}
        runs = _all(dynamo, "days", list(_cases(options, chosen)))
        steady = _all(dynamo, "steady", list(_steady(chosen)))
        static = [
            run
            for kind in options.kinds
            for day in (TUNED_DAY, *DAYS)
            for run in _static(dynamo, kind, day)
        ]
        if options.write:
            drawn = options.kinds[-1], DAYS[0], options.cold_starts[-1]
            mine = [r for r in runs if (r["kind"], r["day"], r["cold_start_s"]) == drawn]
            draw(mine, traces.arrivals(*drawn[:2]), BENCH.result(".png"))
        versions = dynamo.versions
    found = {"tuning": tuning, "runs": runs, "steady": steady, "static": static}
    return {
        "versions": versions,
        "capacity": capacity,
        "chosen": chosen,
        **{name: list(map(_shortened, each)) for name, each in found.items()},
    }


def _all(dynamo: Dynamo, what: str, cases: Sequence[Case]) -> list[dict[str, Any]]:
    with progress() as bar:
        return [dynamo.run(case) for case in bar.track(cases, description=what)]


def _shortened(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run without what is drawn only."""
    since_s = STEADY_FROM_S if run["kind"] == STEADY else 0.0
    changes = sum(at_s >= since_s for at_s in run["changes_s"])
    left_out = ("sizes", "changes_s", "config")
    kept = {name: value for name, value in run.items() if name not in left_out}
    return {**kept, "changes_per_hour": changes / (run["end_s"] - since_s) * 3600.0}


def _capacity(dynamo: Dynamo, traces: Traces) -> Iterator[dict[str, float]]:
    """One engine at constant rates, in both simulators."""
    for qps in CAPACITY_QPS:
        theirs = {
            timing: dynamo.run(Case(f"{qps:g}", 0, "static", timing=timing, workers=1))
            for timing in get_args(Timing)
        }
        arrivals = [replace(a, slo=SLO) for a in traces.arrivals(f"{qps:g}", 0)]
        config = ClusterConfig(engines(1), foretell_every=0)
        ours = simulate(config, arrivals, [make_policy("least_outstanding")], Random(0))
        yield {
            "qps": qps,
            **{
                f"{timing}_{name}": found[name]
                for timing, found in theirs.items()
                for name in ("within", "tpot_mean_s")
            },
            "our_within": ours.within_slo,
            "our_tpot_mean_s": ours.mean(lambda r: r.tpot_s),
        }


def _tuning(kinds: Sequence[str]) -> Iterator[Case]:
    for kind in kinds:
        for planners in CANDIDATES.values():
            for planner in planners:
                yield Case(kind, TUNED_DAY, *planner, TUNED_COLD_START_S)


def _chosen(tuning: Sequence[Mapping[str, Any]], kind: str) -> dict[str, str]:
    """The best candidate of each group: the one with the fewest instance-hours of those that keep
    enough within the targets, or else the one with the most within them."""
    found = {}
    for group, planners in CANDIDATES.items():
        names = {planner.name for planner in planners}
        mine = [run for run in tuning if run["kind"] == kind and run["planner"] in names]
        enough = [run for run in mine if run["within"] >= WITHIN]
        best = (
            min(enough, key=lambda r: float(r["hours"]))
            if enough
            else max(mine, key=lambda r: float(r["within"]))
        )
        found[group] = str(best["planner"])
    return found


def _planners(chosen: Mapping[str, str]) -> list[Planner]:
    """Those that are reported."""
    by_name = {planner.name: planner for each in CANDIDATES.values() for planner in each}
    return [*FIXED, *(by_name[name]._replace(name=g) for g, name in chosen.items())]


def _cases(options: argparse.Namespace, chosen: Mapping[str, Mapping[str, str]]) -> Iterator[Case]:
    for kind in options.kinds:
        for planner in _planners(chosen[kind]):
            for cold_s in options.cold_starts:
                for day in DAYS:
                    yield Case(kind, day, *planner, cold_s)


def _steady(chosen: Mapping[str, Mapping[str, str]]) -> Iterator[Case]:
    """Planners as they are tuned for tides, or for what there is."""
    for planner in _planners(next(iter(chosen.values()))):
        for day in DAYS:
            yield Case(STEADY, day, *planner, TUNED_COLD_START_S)


def _static(dynamo: Dynamo, kind: str, day: int) -> Iterator[dict[str, Any]]:
    """More and more workers, until enough is kept."""
    for workers in range(INITIAL, MOST + 1):
        found = dynamo.run(Case(kind, day, "static", workers=workers))
        yield found
        if found["within"] >= WITHIN:
            return


def draw(runs: Sequence[Mapping[str, Any]], arrivals: Sequence[Arrival], path: Path) -> None:
    """Workers over a reported day, beside the arrivals."""
    picture = figure(10.5, 7.0)
    above, below = picture.subplots(2, 1, sharex=True)
    minutes = range(int(HOURS * 60))
    counts = np.bincount([int(a.t_s // 60) for a in arrivals], minlength=len(minutes))
    above.plot([60 * minute for minute in minutes], counts / 60, color="#606060")
    above.set_ylabel("requests/s")
    for run in runs:
        sizes = [(at_s, count) for at_s, count in run["sizes"] if at_s <= run["end_s"]]
        sizes.append((run["end_s"], sizes[-1][1]))
        below.step(*zip(*sizes, strict=True), where="post", label=run["planner"])
    below.set_ylabel("workers")
    below.set_xlabel("s")
    below.legend(ncols=2)
    save(picture, path)
