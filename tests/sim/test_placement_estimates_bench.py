"""The bench of estimated lengths: its traces, and that all its variants get the same requests."""

import json
from math import exp
from pathlib import Path
from typing import Any, cast

import pytest

from bench.placement import estimates as bench
from bench.placement.believed import SOURCES, quality, traces_of
from bench.placement.block.runs import Result, Results, Runner, Then, arrivals_for
from bench.placement.block.settings import Case
from foretell.tools.simulate.run import read_trace
from foretell.workload import Trace


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of conversations of two turns."""
    folder = tmp_path_factory.mktemp("believed")
    rows = [
        {
            "conv": f"c{number // 2}",
            "turn": number % 2,
            "prompt": "Why is the sky blue? " * (1 + number % 5),
            "response": "It is. " * (1 + number % 7),
            "in_tok": 8 + number,
            "hist_tok": 50 * (number % 2),
            "out_tok": 2 + 3 * (number % 7),
        }
        for number in range(40)
    ]
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, rows)))
    return traces_of(prompts, folder)


def test_traces_have_the_same_requests(traces: dict[str, Path]) -> None:
    told = {source: read_trace(str(traces[source]), "csv").requests for source in SOURCES}
    sizes = [[(r.prompt_tokens, r.output_tokens) for r in told[source]] for source in SOURCES]
    assert sizes[0] == sizes[1]
    assert sizes[0][:2] == [(8, 2), (59, 5)]  # earlier turns are part of the prompt
    for source in SOURCES:
        lengths = [request.length for request in told[source]]
        assert all(length is not None and length.quantiles for length in lengths)
        assert len(set(lengths)) > 1
        assert quality(traces[source])["requests"] == 40


class Known:
    """Stands for a runner and its results: the P99 crosses the bound at a known rate."""

    def __init__(self) -> None:
        self.asked: dict[str, Case] = {}

    def ask(self, case: Case, then: Then = lambda result: None, rank: int = 0) -> None:
        self.asked[json.dumps(case.key())] = case
        then(self[case])

    def run(self) -> None: ...

    def __getitem__(self, case: Case) -> Result:
        capacity_qps = 20.0 + case.seed
        capacity_qps *= {"true": 1.0, "told": 0.97}[case.scheduler.estimates]
        p99_s = bench.TTFT_BOUND_S * exp(case.qps - capacity_qps)
        return {"ttft_p99_s": p99_s, "e2e_mean_s": 9.0, "preemptions": 7, "requests": 1000}


def test_a_page_of_known_capacities(traces: dict[str, Path]) -> None:
    known, wanted = Known(), bench.variants()
    made = bench.Bench(traces, cast(Runner, known), (1, 2))
    made.run(wanted)
    rows = bench.rows_of(made, wanted, cast(Results, known))
    assert len(rows) == 2 * len(wanted)
    assert all(row["common_qps"] == pytest.approx(20 + row["seed"], 1e-3) for row in rows)
    facts: dict[str, Any] = {"packages": {}, "cpu": "", "cores": 2, "memory_gib": 1, "os": ""}
    facts |= {"python": "", "load_1min": 0}
    page = {"command": "c", "date": "d", "machine": facts, "requests": 9, "cpu_s": 1, "rows": rows}
    estimates = {source: quality(trace) for source, trace in traces.items()}
    text = bench.tables({**page, "estimates": estimates})["tables"]
    assert text.count("| 97.0% (97.0 to 97.0) |") == len(wanted) - len(bench.POLICIES)
    # Cases differ in what policies know; the requests are the same.
    cases = [case for case in known.asked.values() if case.qps == rows[0]["common_qps"]]
    assert len(cases) == len(wanted)
    requests = [
        [
            (a.t_s, a.prompt_tokens, a.output_tokens)
            for a in arrivals_for(case, _trace(traces, case))
        ]
        for case in cases
    ]
    assert all(other == requests[0] for other in requests)


def _trace(traces: dict[str, Path], case: Case) -> Trace:
    return read_trace(case.options(str(traces["tagger"].parent)).trace, "csv")
