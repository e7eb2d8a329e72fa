"""One cluster for all tests: engines take half a minute to start.

`make test-vllm` names vLLM's Python and the tiny model in the environment.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, cluster
from tests.e2e_vllm.vllm_engines import ENGINE_ARGS, ENGINES, PATIENCE


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    python, model = os.environ["FORETELL_VLLM_PYTHON"], os.environ["FORETELL_TINY_MODEL"]
    run_dir: Path = tmp_path_factory.mktemp("up")
    stock = {"kind": "vllm", "engines": ENGINES - 1, "python": python, "args": ENGINE_ARGS}
    both_classes = stock | {"engines": 1, "offline": True}  # the last one
    file = run_dir / "wanted.yaml"
    content = {
        "engines": [stock, both_classes],
        "models": {model: {"path": model}},
        "schedulers": {"replicas": 1},
        "batches": {"folder": "batches"},
    }
    file.write_text(json.dumps(content))  # YAML too
    flags = (f"--cluster={file}", "--no-restart")
    with cluster(run_dir, *flags, start_s=400.0, **PATIENCE) as found:
        yield found
