"""Tests of the plugin run under a Python that has vLLM; elsewhere they are not collected."""

import importlib
import warnings
from importlib.util import find_spec
from pathlib import Path

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_plugin_*.py", "test_tiny_model.py"]


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Import vLLM before the tests that need it, so that its warnings do not fail a test."""
    needs = module_path.name.startswith(("test_plugin_", "test_twin_", "test_verify_"))
    if needs and find_spec("vllm"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("vllm.v1.core.sched.async_scheduler")
