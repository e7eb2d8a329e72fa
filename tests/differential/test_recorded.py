"""The twin against recordings of vLLM's real scheduler, step by step.

`make test-vllm` compares it with the scheduler itself (tests/vllm/test_twin_differential.py).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.engine import Sequence, Twin
from foretell.model import EngineConfig

RECORDED = Path(__file__).parent / "recorded"


def replay(scenario: dict[str, Any], iterations: int) -> list[dict[str, Any]]:
    """What the twin does with a recorded scenario, in the recording's terms."""
    config = scenario["config"]
    twin = Twin(
        EngineConfig(
            model_name="recorded",
            block_size_tokens=config.get("block_size", 16),
            total_blocks=config.get("num_blocks", 257) - 1,
            max_num_seqs=config.get("max_num_seqs", 8),
            max_num_scheduled_tokens=config.get("max_num_batched_tokens", 256),
            max_model_len=config.get("max_model_len", 2048),
        )
    )
    seen: set[str] = set()
    lines = []
    for step in range(iterations):
        for request in scenario["requests"]:
            if request["arrival_step"] == step:
                twin.add(_sequence(request))
        aborted = [
            r["id"]
            for r in scenario["requests"]
            if r.get("abort_step") == step and twin.abort(r["id"])
        ]
        batch = twin.schedule()
        scheduled = {seq.request_id: n for seq, n in batch.scheduled} if batch else {}
        finished = twin.complete(batch).finished if batch else []
        twin.check()
        lines.append(
            {
                "step": step,
                "sched": scheduled,
                "new": [r for r in scheduled if r not in seen],
                "resumed": [],
                "preempted": [seq.request_id for seq in batch.preempted] if batch else [],
                "finished": [seq.request_id for seq in finished],
                "aborted": aborted,
                "free": twin.free_blocks,
            }
        )
        seen.update(scheduled)
    return lines


def _sequence(request: dict[str, Any]) -> Sequence:
    stop_after = request.get("stop_after") or request["max_tokens"]
    return Sequence(
        request_id=request["id"],
        prompt_tokens=sum(tokens for _, tokens in request["prompt"]),
        stop_after=min(stop_after, request["max_tokens"]),
        max_tokens=request["max_tokens"],
    )


@pytest.mark.parametrize("name", ["h01_budget_saturation", "h14_abort"])
def test_twin_does_what_vllm_did(name: str) -> None:
    scenario = json.loads((RECORDED / f"{name}.json").read_text())
    text = (RECORDED / f"{name}.expected.jsonl").read_text()
    expected = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in expected] == list(range(len(expected)))
    for ours, theirs in zip(replay(scenario, len(expected)), expected, strict=True):
        assert ours == theirs
        assert list(ours["sched"]) == list(theirs["sched"])  # the order counts too
