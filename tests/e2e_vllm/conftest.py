"""One cluster for all tests: engines take half a minute to start.

`make test-vllm` names vLLM's Python and the tiny model in the environment.
"""

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
    flags = (
        f"--engines={ENGINES}",
        "--engine=vllm",
        "--schedulers=1",
        f"--python={python}",
        f"--model={model}",
        f"--engine-args={ENGINE_ARGS}",
        "--no-restart",
    )
    with cluster(run_dir, *flags, start_s=240.0, **PATIENCE) as found:
        yield found
