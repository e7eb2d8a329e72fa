"""Runs of the simulator, in several processes, each kept so that a sweep can go on."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from statistics import fmean, pvariance
from typing import Any

from bench.placement import variants
from bench.placement.block.capacity import Search
from bench.placement.block.settings import Case
from bench.report import ROOT
from bench.runs import pool
from foretell.sim import Report, simulate
from foretell.tools.simulate.cluster import cluster_config
from foretell.tools.simulate.run import fits, read_trace, relative_errors
from foretell.workload import Arrival, Trace, arrivals_of

Result = dict[str, Any]
Then = Callable[[Result], None]
CURVE = (*(level / 200 for level in range(1, 200)), 0.9975, 0.999)
"""Levels at which distributions are drawn."""
SAMPLES = 100


Keep = Callable[[list[Arrival]], list[Arrival]]


def run(case: Case, traces: str, keep: Keep = list) -> Result:
    """What comes of one case, as JSON; equal cases give equal results.

    Of its requests only those that `keep` returns arrive, when they would have in any case.
    """
    setting = case.setting
    options = case.options(traces)
    trace = read_trace(options.trace, options.trace_format)
    arrivals = keep(arrivals_for(case, trace))
    prefixes = any(arrival.prefix for arrival in arrivals)
    config = cluster_config(options, case.seed, prefixes=prefixes, trace=trace.requests)
    config = replace(config, predict_hits=case.scheduler.knows_prefixes)
    engines = {instance.engine for instance in config.instances}
    fitting = [arrival for arrival in arrivals if fits(arrival, engines)]
    span_s = arrivals[-1].t_s - arrivals[0].t_s
    config = replace(config, sample_every_s=span_s / SAMPLES)
    policy = variants.make(options.policy)
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
    """Finished runs, in a JSON lines file, of this state of the code."""

    def __init__(self, path: Path) -> None:
        self._path, self._state = path, state_of_the_code()
        self._found: dict[str, Result] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                if entry["state"] == self._state:
                    self._found[entry["case"]] = entry["result"]

    def get(self, case: Case) -> Result | None:
        """The result of a case; None if it has not run."""
        return self._found.get(_name(case))

    def __getitem__(self, case: Case) -> Result:
        """The result of a case that has run."""
        return self._found[_name(case)]

    def put(self, case: Case, result: Result) -> None:
        """Keep a result, on the disk at once."""
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
    yield from (Path(__file__), Path(variants.__file__))
    yield from (ROOT / "tools" / "simulate" / name for name in ("cluster.py", "run.py"))


class Runner:
    """Makes runs in other processes; whoever gets a result may ask for more."""

    def __init__(
        self, traces: str, results: Results, processes: int, ended: Callable[[], Any]
    ) -> None:
        """`ended` is called for every result."""
        self._traces, self._results, self._processes = traces, results, processes
        self._ended = ended
        self._queue: list[tuple[int, int, Case, Then]] = []
        self._asked = 0
        self.cpu_s = 0.0
        """CPU seconds of all runs, also of those that an earlier call made."""

    def ask(self, case: Case, then: Then = lambda result: None, rank: int = 0) -> None:
        """Give the result of `case` to `then`: at once if it is known; else lowest ranks first."""
        known = self._results.get(case)
        if known is None:
            self._asked += 1
            heappush(self._queue, (rank, self._asked, case, then))
        else:
            self._hand_on(known, then)

    def run(self) -> None:
        """Make runs until none is left."""
        running: dict[Future[Result], tuple[Case, Then]] = {}
        with pool(self._processes) as workers:
            while self._queue or running:
                while self._queue and len(running) < self._processes:
                    _, _, case, then = heappop(self._queue)
                    running[workers.submit(timed_run, case, self._traces)] = case, then
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    case, then = running.pop(future)
                    self._results.put(case, future.result())
                    self._hand_on(future.result(), then)

    def _hand_on(self, result: Result, then: Then) -> None:
        self.cpu_s += result["cpu_s"]
        self._ended()
        then(result)


def probe(runner: Runner, search: Search, case: Callable[[float], Case], rank: int = 0) -> None:
    """Have `runner` make the runs of a search; `case` is the run at a rate."""

    def learnt(result: Result) -> None:
        if search.learn(result["ttft_p99_s"]):
            probe(runner, search, case, rank)

    runner.ask(case(search.next_qps), learnt, rank)


def timed_run(case: Case, traces: str) -> Result:
    """`run`, and the CPU seconds it took."""
    start_s = time.process_time()
    result = run(case, traces)
    return {**result, "cpu_s": round(time.process_time() - start_s, 2)}
