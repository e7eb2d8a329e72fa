"""Makes rows and their helpers importable; at the end prints the vectors with the highest costs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
sys.path.insert(0, str(Path(__file__).parent))

import costs


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if costs.COSTS:
        terminalreporter.write_line(costs.worst())
