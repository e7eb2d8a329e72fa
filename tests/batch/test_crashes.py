"""Whenever processes are killed, no line is lost or answered twice, and every state is legal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from crashes import SCENARIOS
from postgres import postgres

from tests.sweeps import cases

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
KILLS = os.environ.get("BATCH_KILLS", str(cases(60, 20)))
EVERY = os.environ.get("BATCH_CRASHES_EVERY", str(cases(9, 27)))
"""With Postgres, the process is killed at each operation whose number is a multiple of this."""
EVERY_ON_DISK = str(cases(1, 4))


# Long enough for `make test-batch-kills`.
pytestmark = [pytest.mark.sweep, pytest.mark.timeout(3600)]


def run(program: str, *arguments: str) -> None:
    command = [sys.executable, str(HERE / program), *arguments]
    subprocess.run(command, check=True, env=ENVIRONMENT)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_process_is_killed_at_every_write(scenario: str) -> None:
    run("crashes.py", scenario, "--every", EVERY_ON_DISK)


def test_a_process_is_killed_at_writes_to_postgres() -> None:
    with postgres() as server:
        run("crashes.py", "--database", server.url, "--every", EVERY)


def test_workers_are_killed_at_random(tmp_path: Path) -> None:
    run("workers.py", str(tmp_path), KILLS)


@pytest.mark.skipif("BATCH_KILLS" not in os.environ, reason="make test-batch-kills")
def test_workers_on_postgres_are_killed_at_random(tmp_path: Path) -> None:
    with postgres() as server:
        run("workers.py", str(tmp_path), KILLS, server.url)
