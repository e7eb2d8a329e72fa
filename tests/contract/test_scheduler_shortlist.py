"""In a large pool a placement asks a few predictors, chosen by what earlier answers said."""

from contextlib import AsyncExitStack
from pathlib import Path

from engines import answer, engines
from schedulers import PATIENT_MS, running
from scripted_peers import Predictor, serving

from foretell.v1 import predictor_pb2

POOL = 5


def predictor(running_requests: int) -> Predictor:
    found = Predictor()
    found.predicted.load.CopyFrom(
        predictor_pb2.Load(running=running_requests, total_blocks=100, max_num_seqs=48)
    )
    return found


async def asked_of(
    tmp_path: Path, predictors: list[Predictor], requests: int, **settings: object
) -> list[int]:
    """How many questions each of them got, one request after the other."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(engines(*[answer] * len(predictors)))
        addresses = [await stack.enter_async_context(serving(p)) for p in predictors]
        scheduler = await stack.enter_async_context(
            running(
                tmp_path,
                pool,
                addresses,
                predictor_deadline_ms=PATIENT_MS,
                turn_deadline_ms=PATIENT_MS,
                **settings,
            )
        )
        for _ in range(requests):
            assert (await scheduler.complete()).status_code == 200
    return [len(p.asked) for p in predictors]


async def test_as_many_are_asked_as_the_setting_says(tmp_path: Path) -> None:
    for policy in ("predicted_latency", "llumnix_minus"):
        idle = [predictor(0) for _ in range(POOL)]
        asked = await asked_of(tmp_path, idle, 12, policy=policy, candidates=2, policy_seed=1)
        assert sum(asked) == 24
        assert sum(len(p.reserved) for p in idle) == 12


async def test_the_busy_are_left_in_peace(tmp_path: Path) -> None:
    pool = [predictor(40), predictor(1), predictor(30), predictor(2), predictor(50)]
    asked = await asked_of(
        tmp_path, pool, 20, policy="predicted_latency", candidates=2, policy_seed=1
    )
    # At first nobody knows; then those who have said that they are busy are not asked again.
    assert asked[1] + asked[3] > 30
    assert max(asked[0], asked[2], asked[4]) < 5


async def test_all_of_a_small_pool_are_asked(tmp_path: Path) -> None:
    pool = [predictor(n) for n in range(3)]
    assert await asked_of(tmp_path, pool, 4, policy="predicted_latency") == [4, 4, 4]
    pool = [predictor(n) for n in range(3)]
    settings = {"policy": "predicted_latency", "candidates": 0}
    assert await asked_of(tmp_path, pool, 4, **settings) == [4, 4, 4]
