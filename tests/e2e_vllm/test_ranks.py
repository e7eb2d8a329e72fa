"""Two data-parallel ranks of a dense model behind one real server, each with its own placements and
snapshots."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from foretell.model import EngineSnapshot
from foretell.services.backend.commands import snapshot_endpoint
from foretell.services.process.memory_log import endpoint_of_rank
from foretell.tools.live.tap import decoded, listening
from tests.e2e.cluster import cluster, until
from tests.e2e_vllm.vllm_engines import ENGINE_ARGS, ONE_THREAD_EACH

pytestmark = [pytest.mark.timeout(900), pytest.mark.vllm]

RANKS, REQUESTS = 2, 8


def _named(snapshots: list[EngineSnapshot]) -> set[str]:
    """The names of the requests in a rank's snapshots."""
    ids = [each.request_id for seen in snapshots for each in (*seen.running, *seen.waiting)]
    return {
        name for name in map("request-{}.".format, range(REQUESTS)) if any(name in i for i in ids)
    }


def test_each_rank_is_placed_on_and_known_by_itself(tmp_path: Path) -> None:
    python, model = os.environ["FORETELL_VLLM_PYTHON"], os.environ["FORETELL_TINY_MODEL"]
    args = f"{ENGINE_ARGS} --max-num-seqs 2"  # so that queues form
    engine: dict[str, object] = {"kind": "vllm", "ranks": RANKS, "python": python, "args": args}
    engine["start_timeout_s"] = 580.0  # for a busy machine
    content = {
        "engines": [engine],
        "models": {model: {"path": model}},
        "schedulers": {"replicas": 1},
    }
    file = tmp_path / "wanted.yaml"
    file.write_text(json.dumps(content))  # YAML too
    flags = (f"--cluster={file}", "--no-restart")
    with (
        cluster(tmp_path, *flags, start_s=600.0, **ONE_THREAD_EACH) as running,
        ExitStack() as taps,
    ):
        endpoint = snapshot_endpoint(running.run_dir, "engine-0")
        heard = [
            taps.enter_context(listening(endpoint_of_rank(endpoint, rank))) for rank in range(RANKS)
        ]
        names = [f"engine-0.rank{rank}" for rank in range(RANKS)]
        seen: list[set[str]] = [set() for _ in range(RANKS)]

        def look() -> None:
            for rank in range(RANKS):
                seen[rank] |= _named(decoded(heard[rank]()))

        def ask(number: int) -> str:
            """The instance that a request was placed on; it runs until that rank published it."""
            body = {"model": model, "prompt": "the " * (20 + number), "max_tokens": 1500}
            with client.stream(
                "POST",
                f"{running.endpoint}/v1/completions",
                json=body | {"ignore_eos": True, "stream": True},
                headers={"x-request-id": f"request-{number}.", "x-data-parallel-rank": "0"},
            ) as answer:
                placed_on = str(answer.raise_for_status().headers["x-foretell-instance"])
                mine = seen[names.index(placed_on)]
                for _ in answer.iter_bytes():
                    if f"request-{number}." in mine:
                        return placed_on
            raise AssertionError(f"request {number} was not published by {placed_on}")

        with httpx.Client(timeout=300) as client, ThreadPoolExecutor(REQUESTS) as pool:
            asked = [pool.submit(ask, number) for number in range(REQUESTS)]
            until(lambda: look() or all(each.done() for each in asked), 300.0)
            assert {each.result() for each in asked} == set(names)
        status = httpx.get(f"{running.endpoint}/status").raise_for_status().json()
        for instance in status["instances"]:
            assert not instance["unpredicted"]
            assert instance["calibration_steps"] > 0
