"""Runs of the simulator, in several processes, each kept so that a sweep can go on."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean, pvariance
from typing import Any

from bench.placement.block import policies
from bench.placement.block.settings import Case
from foretell.sim import Report, simulate
from foretell.workload import Arrival, Trace, arrivals_of
from tools.simulate.cluster import cluster_config
from tools.simulate.run import fits, read_trace, relative_errors

ROOT = Path(__file__).resolve().parents[2]
CURVE = (*(level / 200 for level in range(1, 200)), 0.9975, 0.999)
"""Levels at which distributions are drawn."""
SAMPLES = 100


Keep = Callable[[list[Arrival]], list[Arrival]]


def run(case: Case, traces: str, keep: Keep = list) -> dict[str, Any]:
    """What comes of one case, as JSON; equal cases give equal results.

    Of its requests only those that `keep` returns arrive, when they would have in any case.
    """
    setting = case.setting
    options = case.options(traces)
    arrivals = keep(arrivals_for(case, read_trace(options.trace, options.trace_format)))
    prefixes = any(arrival.prefix for arrival in arrivals)
    config = cluster_config(options, case.seed, prefixes=prefixes)
    config = replace(config, predict_hits=case.scheduler.knows_prefixes)
    engines = {instance.engine for instance in config.instances}
    fitting = [arrival for arrival in arrivals if fits(arrival, engines)]
    span_s = arrivals[-1].t_s - arrivals[0].t_s
    config = replace(config, sample_every_s=span_s / SAMPLES)
    policy = policies.make(options.policy)
    report = simulate(config, fitting, [policy], Random(f"{case.seed} cluster"))
    assert len(fitting) > 0.85 * setting.requests, f"{setting.name}: too few requests fit"
    return {**figures(report), **curves(report)}


def arrivals_for(case: Case, trace: Trace) -> list[Arrival]:
    """The requests of a seed, equal for all schedulers; at another rate only their times differ."""
    count = case.setting.requests
    if case.setting.windows:
        first = (case.seed - 1) * count
        trace = replace(trace, requests=trace.requests[first : first + count])
        assert len(trace.requests) == count, f"{case.setting.trace} is too short"
    return arrivals_of(trace, Random(f"{case.seed} trace"), count=count, qps=case.qps)


def figures(report: Report) -> dict[str, Any]:
    """Seconds, counts, blocks; errors relative."""
    return {
        "ttft_mean_s": report.mean(lambda r: r.ttft_s),
        "ttft_p50_s": report.quantile(0.5, lambda r: r.ttft_s),
        "ttft_p99_s": report.quantile(0.99, lambda r: r.ttft_s),
        "e2e_mean_s": report.mean(lambda r: r.e2e_s),
        "e2e_p99_s": report.quantile(0.99, lambda r: r.e2e_s),
        "throughput_rps": report.throughput_rps,
        "preemptions": report.preemptions,
        "requests": len(report.served),
        "free_blocks_mean": report.free_blocks_mean,
        **relative_errors(report.served),
    }


def curves(report: Report) -> dict[str, Any]:
    """Distributions at `CURVE`, and memory at instants: its mean and variance over instances."""
    start_s = report.samples[0][0]
    return {
        "ttft_curve_s": [round(report.quantile(p, lambda r: r.ttft_s), 4) for p in CURVE],
        "e2e_curve_s": [round(report.quantile(p, lambda r: r.e2e_s), 4) for p in CURVE],
        "memory": [
            (round(at_s - start_s, 2), round(fmean(free), 1), round(pvariance(free), 1))
            for at_s, free in report.samples
        ],
    }


class Results:
    """Finished runs, in a JSON lines file of this state of the code."""

    def __init__(self, path: Path) -> None:
        self._path, self._state = path, state_of_the_code()
        self._found: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                if entry["state"] == self._state:
                    self._found[entry["case"]] = entry["result"]

    def get(self, case: Case) -> dict[str, Any] | None:
        """None where it has not run."""
        return self._found.get(_name(case))

    def put(self, case: Case, result: dict[str, Any]) -> None:
        """Keep it, on the disk at once."""
        self._found[_name(case)] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"state": self._state, "case": _name(case), "result": result}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _name(case: Case) -> str:
    return json.dumps(case.key(), sort_keys=True)


def state_of_the_code() -> str:
    """A digest of the sources that decide what comes of a run."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    library = ROOT / "foretell"
    yield from sorted([*library.rglob("*.py"), *library.rglob("*.json")])
    yield from (ROOT / "bench" / "block" / name for name in ("policies.py", "runs.py"))
    yield from (ROOT / "cli" / "simulate" / name for name in ("cluster.py", "run.py"))
