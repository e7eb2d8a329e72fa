"""The snapshot stream over real sockets: both its ends, and failures."""

import asyncio
from dataclasses import replace
from pathlib import Path

from sidecars import WAIT_S, Replica, Sidecar, replica, request, sidecar, snapshot, until

from foretell.latency.linear import StepTimeModel
from foretell.length.prefix import chained
from foretell.model import BatchShape
from foretell.services.process.traffic import OPEN
from foretell.v1 import predictor_pb2 as pb


async def test_an_idle_engine_is_not_believed_to_be_slow_for_ever(tmp_path: Path) -> None:
    """Without snapshots and requests, the follower still hears that slow steps are forgotten."""
    probe = BatchShape(1, 100, 5050, 0, 0)

    def believed_s(one: Replica) -> float:
        predictor = one.cache["e"].predictor
        return StepTimeModel(predictor.model).step_s(probe) if predictor is not None else 0.0

    async with sidecar(tmp_path) as here, replica(here.address) as one:
        here.service.hear(snapshot(running=4))
        for slowdown, steps in ((1.0, 3000), (10.0, 50)):
            for decodes in range(1, steps):
                shape = BatchShape(decodes % 3 == 0, 64, 2080, decodes % 8, 100 * (decodes % 8))
                here.service.step_time.observe(shape, 1e-3 * slowdown)
        here.service.hear(snapshot(running=0, sequence=2))
        await until(lambda: believed_s(one) > 5e-3)
        await until(lambda: believed_s(one) < 2e-3)


async def test_a_follower_hears_of_snapshots_and_is_told_of_the_end(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as here, replica(here.address) as one:
        here.service.hear(snapshot(running=4))
        await until(lambda: one.running() == 4)
        assert one.following.reserve(request("a"))
        assert one.reserved() == 1  # at once
        await until(lambda: here.reserved() == 1)
        here.service.hear(snapshot(running=5, sequence=2))
        await until(lambda: one.running() == 5)
        assert one.reserved() == 1  # counted once
        seen = one.following.complete(request("a"), answered=True)
        assert seen is not None
        assert one.reserved() == 1  # the predictor still reports it
        assert isinstance(await asyncio.wait_for(seen, WAIT_S), pb.Seen)
        await until(lambda: one.reserved() == 0 and here.reserved() == 0)


async def test_a_follower_hears_why_an_engine_is_not_predicted(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as here, replica(here.address) as one:
        here.service.hear_nothing("vLLM 9.9: not verified")
        await until(lambda: one.following.unpredicted == "vLLM 9.9: not verified")
        here.service.hear(snapshot(running=4))  # the next engine is predicted
        await until(lambda: one.running() == 4 and one.following.unpredicted == "")


async def test_followers_hear_of_each_other(tmp_path: Path) -> None:
    async with (
        sidecar(tmp_path) as here,
        replica(here.address) as one,
        replica(here.address) as other,
    ):
        here.service.hear(snapshot())
        await until(lambda: one.is_fresh() and other.is_fresh())
        one.following.reserve(request("a", sequences=3))
        await until(lambda: other.reserved() == 3)
        assert one.reserved() == 3


async def test_prefixes_are_told_as_they_come_and_go(tmp_path: Path) -> None:
    prefix = chained([b"a", b"b"])
    asked = request("x", prefix=prefix, prefix_chunk_tokens=40.0)

    def cached(one: Replica) -> int:
        (found,) = one.cache.predict(
            ["e"],
            asked,
            asyncio.get_running_loop().time(),
            announced_only=True,
            externality=False,
            with_quantiles=False,
        )
        return found.cached_tokens

    async with sidecar(tmp_path) as here:
        here.service.hear(snapshot(caching=True))
        here.service.reserve(request("first", prefix=prefix[:1], prefix_chunk_tokens=40.0))
        async with replica(here.address) as one:
            await until(lambda: one.is_fresh() and cached(one) == 32)  # cached before it followed
            here.service.reserve(request("second", prefix=prefix, prefix_chunk_tokens=40.0))
            here.service.changed()
            await until(lambda: cached(one) == 80)
            # A new run of the engine begins with an empty cache.
            again = replace(snapshot(caching=True, sequence=1), engine_run_id="another")
            here.service.hear(again)
            await until(lambda: cached(one) == 0)


async def test_a_predictor_that_comes_back_is_told_what_is_on_its_way(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as here, replica(here.address) as one:
        here.service.hear(snapshot())
        await until(one.is_fresh)
        one.following.reserve(request("a"))
        one.following.reserve(request("b"))
        waiting = one.following.complete(request("b"), answered=True)
        assert waiting is not None
        await here.stop()
        assert await asyncio.wait_for(waiting, WAIT_S) in (None, pb.Seen())
        assert not one.following.reserve(request("c"))  # the predictor cannot be notified
        assert one.following.complete(request("nobody"), answered=True) is None
        assert one.running() == 4  # the last snapshot counts until it is stale
        fresh = Sidecar(here.address, OPEN)
        await fresh.start()
        fresh.service.hear(snapshot(running=2))
        await until(lambda: one.running() == 2)
        await until(lambda: fresh.reserved() == 2)
        assert one.reserved() == 2
        await fresh.stop()
        await here.start()
