"""`foretell bench predict` at its smallest: what it prints is JSON that says what it measured."""

import json
import subprocess
import sys

KEYS = ("kernel_us_p50", "kernel_us_p99", "snapshot_write_us_p50", "snapshot_read_us_p50")


def test_it_prints_the_cost_of_predictions_as_json() -> None:
    argv = [sys.executable, "-m", "foretell.cli.main", "bench", "predict"]
    argv += ["--running", "3", "--waiting", "2", "--predictions", "2"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=100)
    printed = json.loads(ended.stdout)
    assert all(printed[key] > 0 for key in KEYS), printed
    assert printed["kernel_us_p50"] <= printed["kernel_us_p99"]
    assert (printed["running"], printed["waiting"], printed["samples"]) == (3, 2, 2)
    assert printed["async_scheduling"]
    assert "rollouts" in ended.stderr
