"""The twin against vLLM's real scheduler, step by step: sync, without prefix-cache hits."""

from random import Random
from typing import Any

import pytest

from foretell.engine import Sequence, Twin

pytestmark = pytest.mark.vllm

driver = pytest.importorskip("tests.vllm.driver", reason="needs vLLM: make test-vllm")

SCENARIOS = 200


def random_scenario(rng: Random) -> tuple[Any, list[dict[str, Any]]]:
    """A small engine under pressure, and requests with the loop iteration they arrive in."""
    config = driver.engine_config(
        total_blocks=rng.randint(16, 80),
        max_num_seqs=rng.randint(1, 12),
        max_num_scheduled_tokens=rng.randint(16, 128),
        max_model_len=256,
        enable_prefix_caching=False,
        policy=rng.choice(["fcfs", "priority"]),
        watermark_ratio=rng.choice([0.0, 0.0, 0.05]),
        reserve_full_isl=rng.random() < 0.7,
        long_prefill_token_threshold=rng.choice([0, 0, 16]),
    )
    requests = []
    for i in range(rng.randint(1, 24)):
        max_tokens = rng.randint(1, 60)
        requests.append(
            {
                "request_id": f"r{i}",
                "prompt": rng.randint(1, 180),
                "max_tokens": max_tokens,
                "eos_after": rng.choice([0, rng.randint(1, max_tokens)]),
                "priority": rng.randint(0, 2),
                "arrival_step": rng.randint(0, 40),
                "abort_step": rng.choice([None, None, None, rng.randint(5, 80)]),
            }
        )
    return config, sorted(requests, key=lambda r: r["arrival_step"])


@pytest.mark.parametrize("seed", range(SCENARIOS))
def test_twin_schedules_exactly_what_vllm_schedules(seed: int) -> None:
    config, requests = random_scenario(Random(seed))
    loop, twin = driver.EngineLoop(config), Twin(config)
    todo = list(requests)
    for step in range(5_000):
        while todo and todo[0]["arrival_step"] <= step:
            _add(loop, twin, todo.pop(0), arrival_s=float(len(requests) - len(todo)))
        for request in requests:
            if request["abort_step"] == step:
                assert loop.abort(request["request_id"]) == twin.abort(request["request_id"])
        if not loop.busy:
            if not todo:
                break
            continue
        theirs = loop.step()
        batch = twin.schedule()
        finished = twin.complete(batch).finished if batch else []
        twin.check()
        scheduled = [(s.request_id, n) for s, n in batch.scheduled] if batch else []
        preempted = [s.request_id for s in batch.preempted] if batch else []
        where = f"seed {seed}, iteration {step}"
        assert scheduled == list((theirs.scheduled or {}).items()), where
        assert sorted(preempted) == sorted(theirs.preempted), where
        assert [s.request_id for s in finished] == theirs.finished, where
        assert twin.free_blocks == theirs.free_blocks, where
    assert not todo
    assert twin.idle


def _add(loop: Any, twin: Twin, request: dict[str, Any], arrival_s: float) -> None:
    loop.add(
        request["request_id"],
        request["prompt"],
        request["max_tokens"],
        eos_after=request["eos_after"],
        priority=request["priority"],
        arrival_s=arrival_s,
    )
    twin.add(
        Sequence(
            request["request_id"],
            request["prompt"],
            stop_after=request["eos_after"] or request["max_tokens"],
            max_tokens=request["max_tokens"],
            arrival_s=arrival_s,
            priority=request["priority"],
        )
    )
