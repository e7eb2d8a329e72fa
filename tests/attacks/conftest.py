"""Rows and what they need are found beside the tests; at the end it is told what was dearest."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
sys.path.insert(0, str(Path(__file__).parent))

import costs


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if costs.COSTS:
        terminalreporter.write_line(costs.worst())
