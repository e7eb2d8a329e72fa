"""A real vLLM that foretell did not start, without the plugin, is observed and predicted."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from foretell.services.process.folders import free_ports
from tests.e2e.cluster import Cluster, cluster, until
from tests.e2e_vllm.vllm_engines import ONE_THREAD_EACH

pytestmark = [pytest.mark.timeout(900), pytest.mark.vllm]
SEATS, BLOCKS, LONGEST = 2, 60, 1024
START_S = 400.0
FLAGS = (
    "--enforce-eager --dtype float32 --distributed-executor-backend uni "
    f"--max-model-len {LONGEST} --max-num-seqs {SEATS} --num-gpu-blocks-override {BLOCKS}"
)


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def stock_vllm(folder: Path) -> Iterator[str]:
    """The URL of a vLLM started by its own command."""
    python, model = os.environ["FORETELL_VLLM_PYTHON"], os.environ["FORETELL_TINY_MODEL"]
    (port,) = free_ports("127.0.0.1", 1)
    place = ("--host", "127.0.0.1", "--port", str(port), "--model", model)
    argv = [python, "-m", "vllm.entrypoints.openai.api_server", *place, *FLAGS.split()]
    with (folder / "vllm.log").open("wb") as log:
        engine = subprocess.Popen(
            argv, stdout=log, stderr=subprocess.STDOUT, env=os.environ | ONE_THREAD_EACH
        )
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: answers(f"{url}/health") or engine.poll() is not None, START_S)
            assert engine.poll() is None, (folder / "vllm.log").read_text()[-4000:]
            yield url
        finally:
            engine.terminate()
            try:
                engine.wait(30.0)
            except subprocess.TimeoutExpired:
                engine.kill()
                engine.wait()


def engine_of(running: Cluster) -> dict[str, Any]:
    status = httpx.get(f"{running.endpoint}/status").raise_for_status().json()
    found: dict[str, Any] = status["instances"][0]
    return found


async def ask(running: Cluster, count: int, tokens: int) -> list[httpx.Headers]:
    async with httpx.AsyncClient(base_url=running.endpoint, timeout=300.0) as client:
        body = {"prompt": "one two three", "max_tokens": tokens, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        asked = (client.post("/v1/completions", json=body) for _ in range(count))
        found = await asyncio.gather(*asked)
    for each in found:
        assert each.status_code == 200, each.text
        assert "[DONE]" in each.text
    return [each.headers for each in found]


def test_it_is_observed_and_predicted(tmp_path: Path) -> None:
    with stock_vllm(tmp_path) as url:
        file = tmp_path / "wanted.yaml"
        engine = {"kind": "openai", "url": url}
        file.write_text(json.dumps({"engines": [engine], "schedulers": {"replicas": 1}}))
        with cluster(tmp_path, f"--cluster={file}", "--no-restart") as running:
            until(lambda: bool(engine_of(running)["approximations"]), 30.0)
            asyncio.run(ask(running, 3 * SEATS, 60))
            # On a busy machine a tiny model's steps arrive in bursts, and few can be distinguished.
            until(lambda: engine_of(running)["calibration_steps"] > 0, 30.0)
            assert engine_of(running)["approximations"] == ["observed from outside"]
            (headers,) = asyncio.run(ask(running, 1, 5))
            assert float(headers["x-foretell-predicted-e2e-s"]) > 0
            assert "observed from outside" in headers["x-foretell-calibration"]
            until(lambda: engine_of(running)["running"] == 0, 30.0)
