"""The Block paper's cluster, on a few requests."""

from pathlib import Path
from random import Random

from bench.placement.a30 import Load, cluster, figures, read_lengths
from foretell.policy import make_policy
from foretell.sim import simulate

PAIRS = [(64, 20), (300, 8), (12, 40)]


def test_only_requests_that_fit_are_read(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n64,20\n0,5\n5,0\n4096,1\n300,8\n")
    assert read_lengths(lengths) == [(64, 20), (300, 8)]


def test_a_run_can_be_repeated() -> None:
    load = Load(40.0, 12, 1, PAIRS)
    first, second = (
        figures(simulate(cluster(), load.arrivals(), [make_policy("slo")], Random(1)))
        for _ in range(2)
    )
    assert 0 < first["ttft_mean_s"] <= first["ttft_p99_s"] <= first["e2e_p99_s"]
    assert first == second
