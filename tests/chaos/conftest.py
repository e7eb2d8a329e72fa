"""Prints what the clients of each case saw when all are through."""

import pytest
from rich.console import Console

from tests.chaos.summary import ROWS, show


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """A table below the tests' own results."""
    rows = config.stash.get(ROWS, [])
    if rows:
        terminalreporter.section("chaos")
        show(rows, Console(width=150))
