"""The bench of placement policies, on a few requests."""

from pathlib import Path
from typing import Any

from bench.placement.a30 import read_lengths
from bench.placement.policies import POLICIES, Case, run, tables
from bench.placement.variants import ABLATIONS

PAIRS = [(64, 20), (300, 8), (12, 40)]


def test_only_requests_that_fit_are_read(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n64,20\n0,5\n5,0\n4096,1\n300,8\n")
    assert read_lengths(lengths) == [(64, 20), (300, 8)]


def test_every_policy_and_variant_gets_the_same_requests_and_a_row() -> None:
    cases = [Case(policy, 0.3, 40.0, 1) for policy in (*POLICIES, *ABLATIONS)]
    runs = [run(case, PAIRS, 12) for case in cases]
    assert all(0 < r["ttft_mean_s"] <= r["ttft_p99_s"] <= r["e2e_p99_s"] for r in runs)
    facts: dict[str, Any] = {"packages": {}, "cpu": "", "cores": 2, "memory_gib": 1, "os": ""}
    facts |= {"python": "", "load_1min": 0}
    page = {"command": "c", "date": "d", "machine": facts, "requests": 12, "runs": runs}
    text = tables(page)["tables"]
    assert "Estimates with 30% log-normal noise" in text
    assert "True lengths" not in text
    assert all(f"| {case.policy} |" in text for case in cases)


def test_a_case_can_be_repeated() -> None:
    first, second = (run(Case("externality", 0.0, 40.0, 1), PAIRS, 12) for _ in range(2))
    assert first == second
