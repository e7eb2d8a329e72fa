"""Users' clients, each in its own environment, against a cluster of emulated engines.

`make test-clients` installs them and sets the paths of their environments.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.cluster import Cluster, cluster

pytestmark = pytest.mark.timeout(300)

HERE = Path(__file__).parent
REQUESTS = 40


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    run_dir: Path = tmp_path_factory.mktemp("up")
    file = tmp_path_factory.mktemp("file") / "cluster.yaml"
    file.write_text("engines: [{kind: emulated, engines: 2, args: --speedup 4}]\n")
    with cluster(run_dir, f"--cluster={file}") as found:
        yield found


@pytest.fixture(scope="module")
def model(running: Cluster) -> str:
    return str(httpx.get(f"{running.endpoint}/v1/models").json()["data"][0]["id"])


def ran(*argv: str | Path, **environment: str) -> str:
    """The output of a command; the test fails with it if the command fails."""
    done = subprocess.run(
        [str(each) for each in argv],
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def clients() -> Path:
    return Path(os.environ["FORETELL_CLIENTS"])


def test_openai_sdk(running: Cluster) -> None:
    ran(clients() / "bin/python", HERE / "sdk_openai.py", running.endpoint)


@pytest.mark.parametrize("script", ["sdk_anthropic.py", "sdk_langchain.py"])
def test_other_sdks(running: Cluster, model: str, script: str) -> None:
    ran(clients() / "bin/python", HERE / script, running.endpoint, model)


def test_openai_sdk_for_node(running: Cluster, model: str) -> None:
    modules = clients() / "lib/node_modules"
    ran("node", HERE / "sdk_node.mjs", running.endpoint, model, modules.absolute())


def test_guidellm(running: Cluster, model: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    ran(
        clients() / "bin/guidellm",
        "run",
        "--backend",
        f"kind=openai_http,target={running.endpoint},model={model}",
        "--profile",
        "kind=concurrent,streams=4",
        "--constraint",
        f"kind=max_requests,count={REQUESTS}",
        "--tokenizer",
        f"kind=huggingface_auto,model={os.environ['FORETELL_TINY_MODEL']}",
        "--data",
        "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
        "--output",
        f"kind=json,path={report}",
        "--disable-console",
    )
    assert requests_of(json.loads(report.read_text())) == (REQUESTS, 0)


def requests_of(report: dict) -> tuple[int, int]:
    """The numbers of requests that guidellm counts as successful and as failed."""
    totals = report["benchmarks"][0]["metrics"]["request_totals"]
    return totals["successful"], totals["errored"]


def test_vllm_bench_serve(running: Cluster, model: str, tmp_path: Path) -> None:
    ran(
        *(os.environ["FORETELL_VLLM_PYTHON"], HERE / "bench_serve.py"),
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", running.endpoint, "--model", model),
        *("--tokenizer", os.environ["FORETELL_TINY_MODEL"], "--dataset-name", "random"),
        *("--random-input-len", "64", "--random-output-len", "16"),
        *("--num-prompts", str(REQUESTS), "--save-result", "--result-dir", str(tmp_path)),
    )
    result = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert (result["completed"], result.get("failed", 0)) == (REQUESTS, 0)
