"""`foretell profile import` and `foretell accuracy` from the command line."""

import csv
import gzip
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.config import load_profile
from foretell.latency.profile_json import profile_to_json
from foretell.tools.accuracy.recorded_run import read_run
from foretell.tools.profiles.imports import profile_of
from foretell.tools.profiles.sizes import known_device, known_model
from tests.sweeps import cases
from tests.unit.test_latency_importers import attention_rows, dense_rows, sequence_rows
from tests.unit.test_model_config import LLAMA_8B

RUNS = Path(__file__).resolve().parents[1] / "data" / "recorded_runs"
PROFILES = {
    "Llama-3.1-8B": "RTXPRO6000/Llama-3.1-8B",
    "Qwen3-32B": "RTXPRO6000/Qwen3-32B",
    "Qwen3-30B-A3B-Instruct-2507": "RTXPRO6000/Qwen3-30B-A3B",
}


def run(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    text = str(result.exception) if isinstance(result.exception, SystemExit) else ""
    return result.exit_code, result.stdout + text


def write_table(path: Path, rows: list[dict[str, str]], gzipped: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    raw = path.read_bytes()
    for _ in range(gzipped):
        raw = gzip.compress(raw)
    path.unlink()
    path.with_name(path.name + ".gz" * bool(gzipped)).write_bytes(raw)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """LLMServingSim's layout, some of it gzipped, some twice."""
    folder = tmp_path / "RTXPRO6000" / "meta-llama" / "Llama-3.1-8B" / "bf16" / "tp1"
    write_table(folder / "dense.csv", dense_rows())
    write_table(folder / "per_sequence.csv", sequence_rows(), gzipped=1)
    write_table(folder / "attention.csv", attention_rows(), gzipped=2)
    return folder


def test_import_reads_device_and_model_off_the_path(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "made.json"
    code, text = run("profile", "import", "--format", "llmservingsim", tables, "-o", out)
    assert (code, text) == (0, "")
    made = profile_of(str(out))
    assert made.name == "RTXPRO6000/Llama-3.1-8B"
    assert made.tables is not None
    assert made.tables.decode.seconds[-1] > 0
    assert made.total_blocks == load_profile(made.name).total_blocks
    assert json.loads(json.dumps(profile_to_json(made))) == json.loads(out.read_text())


def test_import_says_what_is_missing(tables: Path, tmp_path: Path) -> None:
    command = ("profile", "import", "-o", tmp_path / "x.json", "--format")
    assert "names no device" in run(*command, "llmservingsim", "/")[1]
    unknown = run(*command, "vidur", tables, "--device", "B1000")[1]
    assert "unknown device" in unknown
    assert "--device-tflops" in unknown
    (tables / "attention.csv.gz").unlink()
    code, text = run(*command, "llmservingsim", tables)
    assert code == 1
    assert "there is no attention.csv[.gz]" in text
    assert "mlp.csv" in run(*command, "vidur", tables)[1]
    assert "gemm_perf.parquet" in run(*command, "aiconfigurator", tables)[1]
    assert not (tmp_path / "x.json").exists()


def test_import_takes_any_device_and_any_model(tables: Path, tmp_path: Path) -> None:
    config = tmp_path / "Mine-8B" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(LLAMA_8B))
    out = tmp_path / "made.json"
    base = ("profile", "import", "--format", "llmservingsim", tables, "-o", out)
    ours = ("--device", "B1000", "--model", config)
    known = run(*base)
    assert known[0] == 0
    expected = profile_of(str(out))
    assert run(*base, *ours) == (0, "")
    made = profile_of(str(out))
    assert (made.name, made.total_blocks) == ("B1000/Mine-8B", 0)
    replayed = run("accuracy", RUNS / "Llama-3.1-8B", "--profile", out)
    assert "how many KV blocks" in replayed[1]
    assert made.tables == expected.tables
    assert run(*base, *ours, "--device-gb", 96)[0] == 0
    assert profile_of(str(out)).total_blocks == pytest.approx(expected.total_blocks, rel=1e-3)
    sheet = ("--device-tflops", 500, "--device-gb-per-s", 1600, "--device-gb", 96)
    no_profile = (RUNS / "Llama-3.1-8B", "--no-profile", "--device", "B1000", "--model", config)
    assert "--device-tflops" in run("accuracy", *no_profile)[1]
    # The replay itself is tested below; here only that it is reached.
    assert "holds no recorded run" in run("accuracy", tmp_path, *no_profile[1:], *sheet)[1]


def test_what_did_not_fit_a_device_is_filled_in(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "made.json"
    command = ("profile", "import", "--format", "llmservingsim", tables, "-o", out)
    assert run(*command)[0] == 0
    whole = profile_of(str(out)).tables
    (tables / "attention.csv.gz").unlink()
    fitted = [r for r in attention_rows() if int(r["n_decode"]) * int(r["kv_decode"]) <= 64 * 2048]
    write_table(tables / "attention.csv", fitted)
    assert run(*command)[0] == 0
    found = profile_of(str(out)).tables
    assert whole is not None
    assert found is not None
    assert found.prefill == whole.prefill
    # In these tables a decode takes the same time behind any context.
    assert found.decode.axes == whole.decode.axes
    assert found.decode.seconds == pytest.approx(whole.decode.seconds, rel=1e-3)


def test_import_without_pyarrow_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    folder = tmp_path / "h100_sxm"
    folder.mkdir()
    (folder / "gemm_perf.parquet").touch()
    args = ("--format", "aiconfigurator", folder, "--model", "Llama-3.1-8B", "-o", tmp_path / "x")
    assert ".[profiles]" in run("profile", "import", *args)[1]


def test_accuracy_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "foretell.tools.accuracy.replayed", None)
    code, text = run("accuracy", RUNS / "Llama-3.1-8B", "--no-profile")
    assert code == 1
    assert "accuracy needs scipy" in text
    assert ".[profiles]" in text


def test_names_are_found_in_paths() -> None:
    for part, device in {
        "h100_sxm": "H100-SXM",
        "rtx_pro_6000_server": "RTXPRO6000",
        "a100": "A100-80GB",
        "l40s": "L40S",
        "h200-nvl": "H200-NVL",
        "RTX4090": "RTX4090",
        "elsewhere": "",
    }.items():
        assert known_device(["data", part]) == device
    assert known_model(["Qwen3-30B-A3B-Instruct-2507"]) == "Qwen3-30B-A3B"
    assert known_model(["Qwen", "Qwen3-32B"]) == "Qwen3-32B"
    assert not known_model(["Mixtral"])


@pytest.mark.sweep
@pytest.mark.parametrize("folder", list(PROFILES)[: cases(3, 1)])
def test_the_twin_is_near_published_runs(folder: str) -> None:
    """The figures of docs/adr/0001-one-twin.md, on the data that they are from."""
    code, text = run("accuracy", RUNS / folder, "--profile", PROFILES[folder])
    assert code == 0, text
    found = json.loads(text)
    assert (found["calibration_requests"], found["requests"]) == (100, 200)
    assert 0.0 < found["host_ms_per_step"] < 2.0
    assert abs(found["tpot"]["mean_error"]) <= 0.02
    assert abs(found["ttft"]["mean_error"]) <= 0.03
    assert abs(found["e2e"]["mean_error"]) <= 0.02
    assert found["e2e"]["mape"] <= 0.03


def test_another_profile_wants_a_host_that_nobody_has() -> None:
    """The test above can fail: of twice the device half the time would be the host's."""
    found = json.loads(run("accuracy", RUNS / "Llama-3.1-8B", "--profile", "H100/Llama-3.1-8B")[1])
    assert found["host_ms_per_step"] > 5.0


def test_a_profile_of_other_parallelism_is_refused() -> None:
    code, text = run("accuracy", RUNS / "Qwen3-32B", "--profile", "RTXPRO6000/Llama-3.1-8B")
    assert code == 1
    assert "--tensor-parallel 2" in text


@pytest.fixture
def small_run(tmp_path: Path) -> Path:
    """The first 30 requests of a run; alone they are another run, but of the same form."""
    source, folder = RUNS / "Llama-3.1-8B", tmp_path / "RTXPRO6000"
    folder.mkdir()
    (folder / "meta.json").write_bytes((source / "meta.json").read_bytes())
    lines = gzip.decompress((source / "requests.jsonl.gz").read_bytes()).splitlines()[:30]
    (folder / "requests.jsonl").write_bytes(b"\n".join(lines))
    return folder


def test_without_a_profile_the_first_third_teaches(small_run: Path) -> None:
    code, text = run("accuracy", small_run, "--no-profile")
    assert code == 0, text
    found = json.loads(text)
    assert (found["calibration_requests"], found["requests"]) == (10, 20)
    assert "RTXPRO6000" in found["step_time"]
    assert len(found["calibration_factors"]) == 5
    assert {"mean_error", "p50_error", "p99_error", "mape"} <= set(found["ttft"])


def test_accuracy_says_what_is_wrong(small_run: Path, tmp_path: Path) -> None:
    assert "either" in run("accuracy", small_run)[1]
    assert "either" in run("accuracy", small_run, "--profile", "x", "--no-profile")[1]
    assert "unknown GPU profile" in run("accuracy", small_run, "--profile", "x/y")[1]
    assert "no recorded run" in run("accuracy", tmp_path, "--no-profile")[1]
    assert (
        "KV cache"
        in run("accuracy", small_run, "--profile", "RTXPRO6000/Llama-3.1-8B", "--kv-blocks", 3)[1]
    )
    requests = small_run / "requests.jsonl"
    rows = [json.loads(line) for line in requests.read_text().splitlines()]
    rows[3]["last_token_ts"] = None
    requests.write_text("\n".join(map(json.dumps, rows)))
    assert "did not finish" in run("accuracy", small_run, "--no-profile")[1]


def test_stamps_are_brought_to_one_clock(small_run: Path) -> None:
    rows = [json.loads(line) for line in (small_run / "requests.jsonl").read_text().splitlines()]
    found = read_run(small_run)
    assert [r.request_id for r in found.requests] == [row["request_id"] for row in rows]
    delays = [row["queued_ts"] - r.arrival_s for row, r in zip(rows, found.requests, strict=True)]
    assert min(delays) == pytest.approx(0.0, abs=1e-6)
    assert max(delays) < 0.2  # no longer than a step or two


def test_the_null_block_holds_nothing(small_run: Path) -> None:
    path = small_run / "meta.json"
    meta = json.loads(path.read_text())
    for told, usable in (({"num_gpu_blocks": 1001}, 1000), ({}, 0), ({"num_gpu_blocks": None}, 0)):
        path.write_text(json.dumps(meta | {"kv_cache": told}))
        assert read_run(small_run).kv_blocks == usable
