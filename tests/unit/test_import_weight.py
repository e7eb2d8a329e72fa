"""Processes import only what they need, and run without the packages that they do not need."""

import subprocess
import sys

import pytest

PROGRAM = "import sys, {module}; sys.exit(str({left_out!r} & set(sys.modules) or ''))"
SERVICES = "foretell.services"


@pytest.mark.parametrize(
    ("module", "left_out"),
    [
        ("foretell.config", {"numpy"}),
        ("foretell.cli.main", {"numpy"}),
        (f"{SERVICES}.scheduler.__main__", {"tokenizers", "opentelemetry"}),
        (f"{SERVICES}.batch.__main__", {"numpy", "grpc", "psycopg", "s3fs"}),
        (f"{SERVICES}.backend.__main__", {"numpy", "grpc", "aiohttp"}),
        (
            f"{SERVICES}.predictor.__main__",
            {"grpc", "aiohttp", "uvicorn", "onnxruntime", "tokenizers"},
        ),
        (
            f"{SERVICES}.tagger.__main__",
            {"numpy", "aiohttp", "uvicorn", "onnxruntime", "tokenizers"},
        ),
        (f"{SERVICES}.backend.emulator.__main__", {"grpc", "aiohttp", "onnxruntime"}),
        (f"{SERVICES}.provisioner.__main__", {"sqlalchemy", "onnxruntime", "tokenizers"}),
    ],
)
def test_it_imports_only_what_it_needs(module: str, left_out: set[str]) -> None:
    program = PROGRAM.format(module=module, left_out=left_out)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert not done.stderr.strip(), done.stderr
