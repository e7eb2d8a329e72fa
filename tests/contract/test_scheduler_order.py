"""The largest requests get a lower priority for a while, on engines that support priorities."""

from pathlib import Path

import pytest
from engines import answer, engines
from schedulers import running, until
from scripted_peers import LOAD, Predictor, serving

SMALL, LARGE = [7], [7] * 3000
"""Prompts as token ids: their length is known, while that of text is learned from answers."""
HEADER = "x-vllm-priority"
LATE_BINDING = {"policy": "predicted_latency", "policy_parameters": {"late_binding": True}}


@pytest.mark.parametrize("by_priority", [True, False])
async def test_hints_of_dynamos_clients_reach_engines_that_know_priorities(
    tmp_path: Path, by_priority: bool
) -> None:
    """Other engines would refuse them."""
    sidecar = Predictor()
    sidecar.predicted.load = LOAD._replace(by_priority=by_priority)
    async with (
        engines(answer) as (engine,),
        serving(sidecar) as address,
        running(tmp_path, [engine], [address], policy="predicted_latency") as scheduler,
    ):
        await scheduler.complete(nvext={"agent_hints": {"priority": 5}})
        await scheduler.complete(nvext={"agent_hints": {"priority": 5}}, priority=3)
        await until(lambda: len(sidecar.reserved) == 2)
    assert [received.headers.get(HEADER) for received in engine.received] == (
        ["-5", None] if by_priority else [None, None]
    )
    assert [spec.priority for spec in sidecar.reserved] == [-5 if by_priority else 0, 3]


TOLD = {"vllm_xargs": {"foretell_output_tokens": 9}}
"""A hint: a known output length. Other lengths are learned as answers end."""


@pytest.mark.parametrize("by_priority", [True, False])
async def test_the_largest_go_last_where_engines_know_priorities(
    tmp_path: Path, by_priority: bool
) -> None:
    sidecar = Predictor()
    sidecar.predicted.ttft_s = 0.01
    sidecar.predicted.load = LOAD._replace(by_priority=by_priority)
    async with (
        engines(answer) as (engine,),
        serving(sidecar) as address,
        running(tmp_path, [engine], [address], **LATE_BINDING) as scheduler,
    ):
        for number in range(100):
            prompt = SMALL if number % 20 else LARGE
            await scheduler.complete(prompt=prompt, **TOLD)
        for headers in ({}, {HEADER: "3"}):
            larger = await scheduler.complete(prompt=2 * LARGE, headers=headers, **TOLD)
            assert larger.status_code == 200
        await scheduler.complete(prompt=SMALL, **TOLD)
        await until(lambda: len(sidecar.reserved) == 103)
        ranks = [1, 4, 0] if by_priority else [0, 3, 0]
        assert [spec.priority for spec in sidecar.reserved] == [0] * 100 + ranks
        told = [received.headers.get(HEADER) for received in engine.received]
    assert told[:100] == [None] * 100
    assert told[100:] == (["1", "4", None] if by_priority else [None, "3", None])
