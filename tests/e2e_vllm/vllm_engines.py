"""Two real vLLM engines on the CPU, and their scheduler's request log."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.e2e.cluster import Cluster, cluster, until
from tests.processes import descendants

ENGINES = 2
# Two engines on two cores: one thread each, and little memory.
ONE_THREAD_EACH = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
ENGINE_ARGS = (
    "--enforce-eager --max-model-len 2048 --max-num-seqs 64 --dtype float32 "
    "--distributed-executor-backend uni --enable-prompt-tokens-details "
    "--scheduling-policy priority --num-gpu-blocks-override 200 "
    "--enable-auto-tool-choice --tool-call-parser hermes --disable-uvicorn-access-log"
)


@contextmanager
def vllm_cluster(run_dir: Path) -> Iterator[Cluster]:
    """A scheduler, a batch service, and engines of which the last one also serves offline requests.

    The environment names vLLM's Python and the model.
    """
    python, model = os.environ["FORETELL_VLLM_PYTHON"], os.environ["FORETELL_TINY_MODEL"]
    stock = {"kind": "vllm", "engines": ENGINES - 1, "python": python, "args": ENGINE_ARGS}
    both_classes = stock | {"engines": 1, "offline": True}
    file = run_dir / "wanted.yaml"
    content = {
        "engines": [stock, both_classes],
        "models": {model: {"path": model}},
        "schedulers": {"replicas": 1},
        "batches": {"folder": "batches"},
    }
    file.write_text(json.dumps(content))  # YAML too
    flags = (f"--cluster={file}", "--no-restart")
    with cluster(run_dir, *flags, start_s=400.0, **ONE_THREAD_EACH) as found:
        yield found


def model_of(running: Cluster) -> str:
    answer = httpx.get(f"{running.endpoint}/v1/models").raise_for_status()
    return str(answer.json()["data"][0]["id"])


def recorded(running: Cluster, wanted: list[str]) -> list[dict[str, Any]]:
    """The request log's lines of `wanted`, in that order; they are written after the answers.

    Recalled attempts have their own lines, which are left out.
    """
    found: dict[str, dict[str, Any]] = {}

    def complete() -> bool:
        for path in running.run_dir.glob("*.requests.jsonl"):
            lines = (json.loads(line) for line in path.read_text().splitlines())
            found.update((line["request_id"], line) for line in lines if line["finished"])
        return all(request_id in found for request_id in wanted)

    until(complete, 20.0)
    return [found[request_id] for request_id in wanted]


def kill_a_process(running: Cluster, engine: str, rng: Random) -> int:
    """SIGKILL an engine's API server, its core or its worker; returns the first one's pid."""
    server: int = running.component(engine)["pid"]
    found = [server]
    for pid in descendants(server):
        with suppress(FileNotFoundError, ProcessLookupError):
            if "VLLM" in Path(f"/proc/{pid}/comm").read_text():
                found.append(pid)
    assert len(found) > 1, "vLLM names its processes otherwise"
    os.kill(rng.choice(found), signal.SIGKILL)
    return server
