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
        "foretell.services.tagger.__main__",
        "foretell.services.batch.__main__",
        "foretell.services.backend.__main__",
        "foretell.config",
        "foretell.cli.main",
    ],
)
def test_it_imports_without_numeric_packages(module: str) -> None:
    program = PROGRAM.format(blocked=BLOCKED, module=module)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("module", "left_out"),
    [
        ("foretell.services.scheduler.__main__", {"tokenizers", "opentelemetry"}),
        ("foretell.services.batch.__main__", {"grpc", "psycopg", "s3fs"}),
        ("foretell.services.backend.__main__", {"grpc", "aiohttp", "zmq"}),
        (
            "foretell.services.predictor.__main__",
            {"aiohttp", "uvicorn", "onnxruntime", "tokenizers"},
        ),
        ("foretell.services.tagger.__main__", {"aiohttp", "uvicorn", "onnxruntime", "tokenizers"}),
        ("foretell.services.backend.emulator.__main__", {"grpc", "aiohttp", "onnxruntime"}),
    ],
)
def test_it_imports_only_what_it_needs(module: str, left_out: set[str]) -> None:
    program = f"import sys, {module}; sys.exit(str({left_out!r} & set(sys.modules) or ''))"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert not done.stderr.strip(), done.stderr
