"""The image runs without compiling or downloading anything."""

import os
import subprocess

import pytest
from projects import BUILD_S, ROOT, find_docker

from foretell import __version__

pytestmark = [pytest.mark.docker, pytest.mark.timeout(950)]
BASE = os.environ.get("BASE_IMAGE", "python:3.11-slim-bookworm")
IMAGE = f"{os.environ.get('FORETELL_IMAGE', 'foretell')}:{__version__}"
COMPILERS = "! command -v cc gcc g++ c++ clang clang++ zig"
ENGINE = """
import pathlib, subprocess, sys, time
ready = pathlib.Path("/tmp/engine.ready")
argv = [sys.executable, "-m", "foretell.services.backend", f"--ready-file={ready}"]
with subprocess.Popen(argv) as engine:
    while not ready.exists() and engine.poll() is None:
        time.sleep(0.05)
    print(ready.read_text(), flush=True)
    engine.terminate()
"""


@pytest.fixture(scope="module")
def docker() -> str:
    """The path of a docker that has built the image."""
    found = find_docker()
    compose = [found, "compose", "-f", "deploy/docker-compose.emulated.yml", "build"]
    subprocess.run(compose, cwd=ROOT, check=True, timeout=BUILD_S)
    return found


@pytest.mark.parametrize("image", [BASE, IMAGE])
def test_it_has_no_compiler(docker: str, image: str) -> None:
    command = [docker, "run", "--rm", "--entrypoint", "sh", image, "-c", COMPILERS]
    subprocess.run(command, check=True, timeout=60)


def test_an_engine_and_its_predictor_serve_without_a_network(docker: str) -> None:
    confined = ("--network=none", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL")
    command = [docker, "run", "--rm", *confined, IMAGE, "python", "-c", ENGINE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert '"model_name"' in done.stdout, done.stderr
