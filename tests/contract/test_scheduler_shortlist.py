"""In a large pool a placement predicts for a few engines, chosen by their last known loads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from pathlib import Path

import pytest
from engines import answer, engines
from schedulers import WAIT_S, Scheduler, running
from scripted_peers import Predictor, serving

from foretell.model import Load
from foretell.placement import budget

POOL = 5


@pytest.fixture(autouse=True)
def never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep other work from making the scheduler late, since a late one asks fewer predictors."""
    monkeypatch.setattr(budget, "LATE_S", inf)


def predictor(running_requests: int) -> Predictor:
    found = Predictor()
    found.predicted.load = Load(running_requests, 0, 0, 0, 100, 0, 48)
    return found


@asynccontextmanager
async def placing(
    tmp_path: Path, predictors: list[Predictor], **settings: object
) -> AsyncIterator[Scheduler]:
    """A scheduler with `predictors`, each for a healthy engine."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(engines(*[answer] * len(predictors)))
        addresses = [await stack.enter_async_context(serving(p)) for p in predictors]
        yield await stack.enter_async_context(
            running(
                tmp_path,
                pool,
                addresses,
                **settings,
            )
        )


async def asked_of(scheduler: Scheduler, predictors: list[Predictor], requests: int) -> list[int]:
    """Send requests one after the other; return how often each predictor was asked."""
    before = [len(p.asked) for p in predictors]
    for _ in range(requests):
        assert (await scheduler.complete()).status_code == 200
    return [len(p.asked) - n for p, n in zip(predictors, before, strict=True)]


async def test_as_many_are_asked_as_the_setting_says(tmp_path: Path) -> None:
    for policy in ("predicted_latency", "llumnix_minus"):
        idle = [predictor(0) for _ in range(POOL)]
        async with placing(tmp_path, idle, policy=policy, candidates=2) as scheduler:
            assert sum(await asked_of(scheduler, idle, 12)) == 24
        assert sum(len(p.reserved) for p in idle) == 12


async def test_the_busy_are_left_in_peace(tmp_path: Path) -> None:
    pool = [predictor(40), predictor(1), predictor(30), predictor(2), predictor(50)]
    async with placing(tmp_path, pool, policy="predicted_latency", candidates=2) as scheduler:
        async with asyncio.timeout(WAIT_S):
            while not all(p.asked for p in pool):  # loads are unknown at first
                await asked_of(scheduler, pool, 1)
        asked = await asked_of(scheduler, pool, 20)
    assert asked[1] + asked[3] > 30
    assert max(asked[0], asked[2], asked[4]) < 5


async def test_all_of_a_small_pool_are_asked(tmp_path: Path) -> None:
    for settings in ({}, {"candidates": 0}):
        pool = [predictor(n) for n in range(3)]
        async with placing(tmp_path, pool, policy="predicted_latency", **settings) as scheduler:
            assert await asked_of(scheduler, pool, 4) == [4, 4, 4]
