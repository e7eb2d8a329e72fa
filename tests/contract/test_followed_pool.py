"""The predictors that a scheduler follows in a pool of several, over real sockets."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from foretell.config.instances import InstanceConfig
from foretell.placement import events
from foretell.services.process.traffic import OPEN
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing import predictors
from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.v1 import predictor_pb2 as pb
from tests.contract.sidecars import Sidecar, request, sidecar, snapshot, until


async def started(stack: AsyncExitStack, tmp_path: Path, count: int) -> tuple[Any, list[Sidecar]]:
    """A pool of instances e0, e1, ..., and their sidecars."""
    pool, sidecars = SimpleNamespace(instances={}, traffic=OPEN), []
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        sidecars.append(await stack.enter_async_context(sidecar(folder)))
        config = InstanceConfig(f"e{number}", "http://engine", sidecars[-1].address)
        pool.instances[f"e{number}"] = PoolInstance(config, healthy=True)
    return pool, sidecars


def predictors_of(
    stack: AsyncExitStack, pool: Any, heard: list[events.InstanceFollowed]
) -> predictors.Predictors:
    """A scheduler's predictors; random choices take the last. `heard` gets their events."""
    found = predictors.Predictors(
        pool,
        SchedulerMetrics(CollectorRegistry()),
        follows=True,
        listener=heard.append,
        random=lambda: 0.9,
    )
    stack.callback(found.close)
    return found


async def test_an_engine_is_at_work_from_its_first_step_until_it_is_not_followed(
    tmp_path: Path,
) -> None:
    time = asyncio.get_running_loop().time
    async with AsyncExitStack() as stack:
        pool, (here,) = await started(stack, tmp_path, 1)
        here.service.hear(snapshot(sequence=1))
        followed = predictors_of(stack, pool, [])
        followed.follow("e0")
        await until(lambda: followed.predict_one(request("a"), "e0", time()) is not None)
        assert followed.worked_s("e0") == -inf
        stepped = snapshot(sequence=2)
        here.service.hear(replace(stepped, taken_unix_s=stepped.taken_unix_s + 0.1))
        await until(lambda: followed.worked_s("e0") > -inf)
        followed.leave("e0")
        assert followed.worked_s("e0") == -inf


async def test_in_a_large_pool_replicas_meet_at_the_same_predictors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica reaches others through a predictor that all follow, whatever else they follow."""
    monkeypatch.setattr(predictors, "MOST_FOLLOWED", 2)
    heard: dict[str, list[int]] = {"one": [], "other": []}
    async with AsyncExitStack() as stack:
        pool, _ = await started(stack, tmp_path, 4)
        replicas = {}
        for name, first in (("one", ["e3", "e1"]), ("other", ["e2", "e1"])):
            made = predictors_of(stack, pool, [])
            made.passed_on = lambda spending, name=name: heard[name].append(spending.number)
            for instance_id in [*first, "e0", "e2"]:
                made.follow(instance_id)
            replicas[name] = made
        await until(lambda: all(each.ways() for each in replicas.values()))

        def told() -> bool:
            for way in replicas["one"].ways():
                way(pb.Spending(replica=1, number=7))
            return bool(heard["other"])

        await until(told)
        assert set(heard["other"]) == {7}
        assert not heard["one"]


async def test_in_a_large_pool_others_are_followed_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictors, "MOST_FOLLOWED", 2)
    monkeypatch.setattr(predictors, "_SWAP_EVERY", 1)
    heard: list[events.InstanceFollowed] = []
    async with AsyncExitStack() as stack:
        pool, sidecars = await started(stack, tmp_path, 3)
        for here, running in zip(sidecars, (1, 8, 1), strict=True):
            here.service.hear(snapshot(running=running))
        followed = predictors_of(stack, pool, heard)
        for instance_id in pool.instances:
            followed.follow(instance_id)
        await until(lambda: len(heard) == 2)
        assert {each.instance_id for each in heard} == {"e0", "e1"}
        followed.reserve(request("a"), "e0", 0.0)
        assert events.InstanceFollowed("e1", followed=False) in heard  # the one with the most load
        await until(lambda: events.InstanceFollowed("e2") in heard)
