"""Predictors without engines, and followers as in scheduler replicas."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from foretell.engine.snapshot_cache import SnapshotCache
from foretell.latency.calibration import OnlineStepTime
from foretell.length.distribution import knots
from foretell.model import EngineSnapshot, LengthEstimate, RequestSpec
from foretell.services.predictor.metrics import PredictorMetrics
from foretell.services.predictor.publisher import Streams
from foretell.services.predictor.service import PredictorService
from foretell.services.process.frames import (
    frames_address,
    serve_frames,
)
from foretell.services.process.traffic import OPEN, Traffic
from foretell.services.scheduler.placing.following import Following
from foretell.tools.harness.cases import Size, make_case

WAIT_S = 20.0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


def snapshot(running: int = 4, sequence: int = 1, *, caching: bool = False) -> EngineSnapshot:
    found = make_case(Size(running, 0), 0, async_scheduling=True).snapshot
    config = replace(found.config, enable_prefix_caching=caching)
    return replace(found, sequence=sequence, instance_id="e", config=config)


def request(request_id: str, **fields: object) -> RequestSpec:
    return RequestSpec(request_id, 100, 0, LengthEstimate(50.0), **fields)  # type: ignore[arg-type]


class Sidecar:
    """The predictor's end: its service, fed by tests, and its stream on a unix socket."""

    def __init__(self, address: str, traffic: Traffic) -> None:
        self.address = address
        self._traffic = traffic
        self.service = PredictorService(
            "e",
            OnlineStepTime(),
            PredictorMetrics(CollectorRegistry()),
            reserve_ttl_s=30.0,
            dispatch_delay_s=0.002,
            prior_output_tokens=100.0,
        )

    async def start(self) -> None:
        self.streams = Streams(self.service, self._traffic)
        where = frames_address(self.address)
        self._server, _ = await serve_frames(self.streams.new, where, self._traffic)

    async def stop(self) -> None:
        self._server.close()
        self.streams.close()
        await self._server.wait_closed()

    def reserved(self) -> int:
        return self.service.predictor.ledger.reserved


@asynccontextmanager
async def sidecar(folder: Path, traffic: Traffic = OPEN) -> AsyncIterator[Sidecar]:
    found = Sidecar(f"unix:{folder}/p", traffic)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


class Replica:
    """The scheduler's end: a snapshot cache that follows one predictor."""

    def __init__(self, address: str, traffic: Traffic = OPEN) -> None:
        self.cache = SnapshotCache(knots)
        self.refused: list[str] = []
        engine = self.cache.follow("e")
        self.following = Following(address, traffic, engine, self.refused.append, lambda _: None)

    def is_fresh(self) -> bool:
        return bool(self.cache.fresh(["e"], asyncio.get_running_loop().time()))

    def reserved(self) -> int:
        return self.cache.load("e").reserved if self.is_fresh() else -1

    def running(self) -> int:
        return self.cache.load("e").running if self.is_fresh() else -1


@asynccontextmanager
async def replica(address: str, traffic: Traffic = OPEN) -> AsyncIterator[Replica]:
    found = Replica(address, traffic)
    found.following.start()
    try:
        yield found
    finally:
        found.following.stop()
