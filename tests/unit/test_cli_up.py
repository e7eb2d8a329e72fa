"""What `foretell up` refuses before it starts anything."""

import fcntl
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foretell.cli.main import app


def up(*flags: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["up", *flags])
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_a_taken_port_is_named_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, text = up("--port", str(port), "--run-dir", str(tmp_path))
    assert code == 1
    assert f"port {port} on 127.0.0.1 is taken" in text
    assert "--port" in text
    assert not (tmp_path / "cluster.json").exists()


def test_a_run_folder_has_one_cluster(tmp_path: Path) -> None:
    with (tmp_path / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, text = up("--port", "0", "--run-dir", str(tmp_path))
    assert code == 1
    assert f"another cluster runs in {tmp_path}" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--engine", "vllm"), "vLLM needs a model"),
        (("--policy", "fastest"), "unknown policy 'fastest'; choose one of least_outstanding"),
        (("--profile", "nonsense"), "profile 'nonsense' is not known"),
        (("--cluster", "/no/such.yaml"), "cannot read the cluster file /no/such.yaml"),
        (("--engine", "vllm", "--model", "m", "--python", "/no/python"), "/no/python"),
        (("--host", "192.0.2.1"), "assign"),
    ],
)
def test_what_cannot_work_is_said_at_once(flags: tuple[str, ...], message: str) -> None:
    code, text = up("--port", "0", *flags)
    assert code == 1
    assert message in text


@pytest.mark.parametrize("name", ["SCHEDULER_POLICY", "PREDICTOR_PROFILE", "EMULATOR_PROFILE"])
def test_a_wrong_variable_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"FORETELL_{name}", "nonsense")
    code, text = up("--port", "0", "--run-dir", str(tmp_path))
    assert code == 1
    assert f"FORETELL_{name} or --{name.lower().partition('_')[2]}: " in text
    assert "choose one of" in text or "A30/Llama-2-7b-hf" in text
    assert not list(tmp_path.glob("*.log"))


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['foretell', '--help']\n"
        "from foretell.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'grpc', 'numpy', 'pydantic', 'httpx', 'uvicorn'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
