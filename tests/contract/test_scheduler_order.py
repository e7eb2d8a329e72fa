"""The largest requests get a lower priority, at engines that know priorities."""

from pathlib import Path

import pytest
from engines import answer, engines
from schedulers import running, until
from scripted_peers import LOAD, Predictor, serving

SMALL, LARGE = "hello", "What is it that we are to compute? " * 400
ORDERED = {"policy": "predicted_latency", "largest_last_ratio": 0.05}
HEADER = "x-vllm-priority"


@pytest.mark.parametrize("by_priority", [True, False])
async def test_the_largest_go_last_where_engines_know_priorities(
    tmp_path: Path, by_priority: bool
) -> None:
    sidecar = Predictor()
    sidecar.predicted.load.CopyFrom(LOAD)
    sidecar.predicted.load.by_priority = by_priority
    async with (
        engines(answer) as (engine,),
        serving(sidecar) as address,
        running(tmp_path, [engine], [address], **ORDERED) as scheduler,
    ):
        for _ in range(100):
            await scheduler.complete(prompt=SMALL)
        for headers in ({}, {HEADER: "3"}):
            assert (await scheduler.complete(prompt=LARGE, headers=headers)).status_code == 200
        await scheduler.complete(prompt=SMALL)
        await until(lambda: len(sidecar.reserved) == 103)
        ranks = [1, 4, 0] if by_priority else [0, 3, 0]
        assert [spec.priority for spec in sidecar.reserved] == [0] * 100 + ranks
        told = [received.headers.get(HEADER) for received in engine.received]
    assert told[:100] == [None] * 100
    assert told[100:] == (["1", "4", None] if by_priority else [None, "3", None])


async def test_who_would_wait_too_long_keeps_its_priority(tmp_path: Path) -> None:
    sidecar = Predictor(e2e_s=200.0)  # TTFT 20 s
    sidecar.predicted.load.by_priority = True
    async with (
        engines(answer) as (engine,),
        serving(sidecar) as address,
        running(tmp_path, [engine], [address], **ORDERED) as scheduler,
    ):
        for _ in range(100):
            await scheduler.complete(prompt=SMALL)
        await scheduler.complete(prompt=LARGE)
        assert HEADER not in engine.received[-1].headers
