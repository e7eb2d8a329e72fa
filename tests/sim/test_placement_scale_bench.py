"""The bench of shortlists, on a few requests."""

from typing import Any

from bench.placement.scale import cases, run, tables

PAIRS = [(64, 20), (300, 8), (12, 40)]


def test_every_choice_gets_the_same_load_and_a_row() -> None:
    runs = [run(case, 20, 60.0, 12, PAIRS) for case in cases([1])]
    assert all(0 < r["ttft_mean_s"] <= r["e2e_mean_s"] for r in runs)
    facts: dict[str, Any] = {"packages": {}, "cpu": "", "cores": 2, "memory_gib": 1, "os": ""}
    facts |= {"python": "", "load_1min": 0}
    page = {"command": "c", "date": "d", "machine": facts, "runs": runs, "instances": 20}
    text = tables(page | {"requests": 12, "qps": 60.0})["tables"]
    for asked in ("nobody: random", "1", "2", "4", "8", "16", "all"):
        assert text.count(f"\n| {asked} |") == 2
