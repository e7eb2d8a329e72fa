"""Compares a co-scheduling twin with recordings of vLLM's scheduler class, step by step.

`make test-vllm` compares it with the class itself (tests/vllm/test_twin_cosched.py).
"""

import json
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

from foretell.engine.forecast import Forecaster
from foretell.engine.published import header_of
from foretell.engine.questions import EngineQuestion, ExpectedArrival, Figures, arrival
from foretell.length.distribution import certain
from foretell.model import OFFLINE_PRIORITY, EngineConfig, LengthEstimate, RequestSpec, Slo
from tests.differential.cosched_twin import MODEL, Ask, TwinEngine

RECORDED = Path(__file__).parent / "cosched"
NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    found["asks"] = [Ask(**each) for each in found["asks"]]
    config = found["config"]
    config["approximations"] = tuple(config["approximations"])
    found["config"] = EngineConfig(**config)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_twin_schedules_what_the_class_did(name: str) -> None:
    theirs = recorded(name)
    names = [ask.name for ask in theirs["asks"]]
    twin = TwinEngine(theirs["config"], theirs["usual_blocks"])
    twin.run(theirs["asks"])
    for mine, (at_s, tokens) in zip(twin.steps, theirs["steps"], strict=True):
        assert mine == (pytest.approx(at_s, abs=1e-9), [(names[i], count) for i, count in tokens])
    assert twin.ended_s == pytest.approx(theirs["ended_s"])


@pytest.mark.parametrize("name", NAMES)
def test_rollouts_foretell_when_each_request_ends(name: str) -> None:
    """From an idle engine, with all arrivals, past and future, announced."""
    theirs = recorded(name)
    config, asks = theirs["config"], theirs["asks"]
    forecaster = Forecaster()
    forecaster.describe(0, config)
    forecaster.believe(0, MODEL.packed())
    idle = Figures(0, 0, config.total_blocks, 0, 1)
    online, drafts = (inf, theirs["usual_blocks"]), ((), ())
    header = header_of(
        config, idle, (), 0.0, contents=0, inputs=0, online=online, draft_ratios=drafts
    )
    forecaster.put(0, header, b"", b"", 0.0)
    followed = [a for a, b in pairwise(asks) if a.at_s < b.at_s]  # the last of those at one time
    for ask in followed[::4]:
        announced = [_arrival(each) for each in asks if each is not ask]
        (found,) = forecaster.forecast([EngineQuestion(0, 1, 0, announced)], _arrival(ask), 0.0)
        assert found.e2e_s == pytest.approx(theirs["ended_s"][ask.name]), ask


def _arrival(ask: Ask) -> ExpectedArrival:
    slo = Slo(ask.ttft_target_s or inf, ask.tpot_target_s or inf)
    priority = OFFLINE_PRIORITY if ask.offline else 0
    length = LengthEstimate(float(ask.stop_after))
    spec = RequestSpec(ask.name, ask.prompt_tokens, ask.max_tokens, length, priority, slo=slo)
    return arrival(spec, certain(float(ask.stop_after)), ask.at_s)


def test_recordings_cover_both_loops_and_what_they_are_for() -> None:
    found = [recorded(name) for name in NAMES]
    assert {each["config"].async_scheduling for each in found} == {False, True}
    assert {bool(each["usual_blocks"]) for each in found} == {False, True}
    asks = [ask for each in found for ask in each["asks"]]
    assert {(ask.offline, bool(ask.ttft_target_s)) for ask in asks} == {
        (True, False),
        (False, True),
        (False, False),
    }
