"""The commands that the docs mark as runnable (```sh run) succeed against a running cluster."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, cluster

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(?P<info>\w+ run\b.*?)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
PREAMBLE = """
set -euo pipefail
foretell() { "$PYTHON" -m foretell.cli.main "$@"; }
curl() { command curl --fail-with-body --silent --show-error "$@"; }
"""
BLOCKS = [
    pytest.param(found["code"], id=f"{page.name}-{number}")
    for page in PAGES
    for number, found in enumerate(_BLOCK.finditer(page.read_text()))
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("docs"), "--engines=2", "--schedulers=1") as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the docs' commands read."""
    lines = [f"{10 + number % 90},{20 + number % 70}" for number in range(300)]
    (tmp_path / "lengths.csv").write_text("\n".join(["input_tokens,output_tokens", *lines]))
    return tmp_path


def test_there_are_such_commands() -> None:
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize("code", BLOCKS)
def test_the_command_runs(code: str, running: Cluster, folder: Path) -> None:
    address = running.endpoint.removeprefix("http://")
    script = PREAMBLE + code.replace("localhost:8000", address).replace("127.0.0.1:8000", address)
    environment = os.environ | {
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.stdout
