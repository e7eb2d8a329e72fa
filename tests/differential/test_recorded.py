"""Compares the twin with recordings of vLLM's real scheduler, iteration by iteration.

`make test-vllm` compares it with the scheduler itself (tests/vllm/test_twin_differential.py).
"""

import json
from pathlib import Path

import pytest

from foretell.engine.replay import replay
from foretell.engine.scenario import parse_scenario

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_the_twin_does_what_vllm_did(name: str) -> None:
    scenario = parse_scenario(json.loads((RECORDED / f"{name}.json").read_text()))
    text = (RECORDED / f"{name}.expected.jsonl").read_text()
    expected = [json.loads(line) for line in text.splitlines()]
    for ours, theirs in zip(replay(scenario), expected, strict=True):
        assert ours == theirs
        assert list(ours["sched"] or ()) == list(theirs["sched"] or ())  # the order counts, too


def test_recordings_cover_both_loops_and_what_they_are_for() -> None:
    assert len(NAMES) == 6
    lines = [
        json.loads(line)
        for name in NAMES
        for line in (RECORDED / f"{name}.expected.jsonl").read_text().splitlines()
    ]
    assert any(line["sched"] is None for line in lines)  # in the async loop only
    for key in ("new", "resumed", "preempted", "finished", "aborted"):
        assert any(line.get(key) for line in lines), key
    assert any(any(line.get("cached", {}).values()) for line in lines)
