"""One cluster for most tests, because engines take half a minute to start.

`make test-vllm` sets vLLM's Python and the tiny model in the environment.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e_vllm.vllm_engines import vllm_cluster


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with vllm_cluster(tmp_path_factory.mktemp("up")) as found:
        yield found
