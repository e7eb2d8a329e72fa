"""Prints what the clients of each case received, after all cases."""

import pytest
from rich.console import Console

from tests.chaos.summary import ROWS, show


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table below the test results."""
    rows = config.stash.get(ROWS, [])
    if rows:
        terminalreporter.section("chaos")
        show(rows, Console(width=150))
