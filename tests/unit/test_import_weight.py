"""Processes that predict nothing must run where numpy is not installed."""

import subprocess
import sys

import pytest

BLOCKED = ("numpy",)
PROGRAM = """
import importlib, sys
for name in {blocked!r}:
    sys.modules[name] = None  # importing it raises ImportError
importlib.import_module({module!r})
"""


@pytest.mark.parametrize(
    "module",
    [
        "services.scheduler.__main__",
        "services.tagger.__main__",
        "services.batch.__main__",
        "services.backend.__main__",
        "foretell.config",
        "cli.main",
    ],
)
def test_it_imports_without_numeric_packages(module: str) -> None:
    program = PROGRAM.format(blocked=BLOCKED, module=module)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
