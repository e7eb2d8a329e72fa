"""`foretell profile import` from the command line."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.latency.profile_json import profile_to_json
from foretell.tools.profiles.imports import profile_of
from foretell.tools.profiles.sizes import known_device
from tests.unit.test_import_aiconfigurator_folder import folder
from tests.unit.test_model_config import LLAMA_8B

__all__ = ["folder"]


def run(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["profile", "import", *map(str, args)])
    text = str(result.exception) if isinstance(result.exception, SystemExit) else ""
    return result.exit_code, result.stdout + text


def test_the_device_is_read_off_the_path(folder: Path, tmp_path: Path) -> None:
    named, out = tmp_path / "h100_sxm", tmp_path / "made.json"
    folder.rename(named)
    model = ("--model", "Llama-3.1-8B", "--tensor-parallel", "2")
    fp8 = ("--weights", "fp8", "--kv-cache", "fp8")
    assert run(named, *model, *fp8, "-o", out) == (0, "")
    made = profile_of(str(out))
    assert (made.name, made.tensor_parallel) == ("H100-SXM/Llama-3.1-8B", 2)
    assert made.tables is not None
    assert made.tables.decode.seconds[-1] > 0
    assert made.total_blocks > 0
    assert made.relative_residual < 0.5
    assert json.loads(json.dumps(profile_to_json(made))) == json.loads(out.read_text())


def test_it_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "x.json")
    without = CliRunner().invoke(app, ["profile", "import", str(folder), *map(str, out)])
    assert without.exit_code == 2
    assert "--model" in without.stderr
    unknown = run(folder, "--model", "Llama-3.1-8B", *out)[1]
    assert "names no device" in unknown
    unknown = run(folder, "--device", "B1000", "--model", "Llama-3.1-8B", *out)[1]
    assert "unknown device" in unknown
    assert "--device-tflops" in unknown
    empty = tmp_path / "a100_sxm"
    empty.mkdir()
    code, text = run(empty, "--model", "Llama-3.1-8B", *out)
    assert code == 1
    assert "gemm_perf.parquet" in text
    assert not (tmp_path / "x.json").exists()


def test_it_takes_any_device_and_any_model(folder: Path, tmp_path: Path) -> None:
    config, out = tmp_path / "Mine-8B" / "config.json", tmp_path / "made.json"
    config.parent.mkdir()
    config.write_text(json.dumps(LLAMA_8B))
    ours = ("--device", "B1000", "--model", config, "--tensor-parallel", 2, "--kv-cache", "fp8")
    sheet = ("--device-tflops", 500, "--device-gb-per-s", 1600)
    assert run(folder, *ours, *sheet, "-o", out) == (0, "")
    made = profile_of(str(out))
    assert (made.name, made.total_blocks) == ("B1000/Mine-8B", 0)
    assert run(folder, *ours, *sheet, "--device-gb", 96, "-o", out)[0] == 0
    assert profile_of(str(out)).total_blocks > 0


def test_import_without_pyarrow_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    folder = tmp_path / "h100_sxm"
    folder.mkdir()
    (folder / "gemm_perf.parquet").touch()
    args = (folder, "--model", "Llama-3.1-8B", "-o", tmp_path / "x")
    assert ".[profiles]" in run(*args)[1]


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


def test_a_profile_of_no_predictor_is_refused(tmp_path: Path) -> None:
    nowhere, out = f"unix:{tmp_path}/none.sock", tmp_path / "x.json"
    result = CliRunner().invoke(app, ["profile", "calibrated", nowhere, "-o", str(out)])
    assert result.exit_code == 1
    assert "no predictor at unix:" in str(result.exception)
    assert not out.exists()
