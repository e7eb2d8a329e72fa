"""Follows one predictor, like a scheduler that sends all of an engine's requests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from foretell.engine.published import Snapshot
from foretell.engine.snapshot_cache import SnapshotCache
from foretell.length.distribution import knots
from foretell.model import Prediction, RequestSpec
from foretell.placement.cached import CachedPredictions
from foretell.services.process.traffic import OPEN
from foretell.services.scheduler.placing.following import Following, Seen

_NAME = "engine"
_SEEN_WITHIN_S = 10.0
_KNOWN_WITHIN_S = 4.0  # a predictor publishes what it knows as soon as it is connected


class NothingKnown(Exception):
    """A predictor publishes no snapshots; the text says why."""


class Follower:
    """Follows one predictor. Create it in a running event loop, and end it by `close`."""

    def __init__(self, address: str) -> None:
        """`address` is the predictor's."""
        cache = SnapshotCache(knots)
        self.engine = cache.follow(_NAME)
        self._predictions = CachedPredictions(cache)
        self._known = asyncio.Event()
        self._following = Following(address, OPEN, self.engine, lambda reason: None, self._shown)
        self._clock = asyncio.get_running_loop().time
        self._following.start()

    async def known(self) -> None:
        """Wait until there is a snapshot."""
        await self._known.wait()

    @property
    def snapshot(self) -> Snapshot:
        """The latest one; there must be one."""
        snapshot = self.engine.snapshot
        assert snapshot is not None, "the predictor has not been heard yet"
        return snapshot

    @property
    def is_connected(self) -> bool:
        """Whether the predictor is connected."""
        return self._following.is_open

    @property
    def unpredicted(self) -> str:
        """Why there is no snapshot, if the predictor says so."""
        return self._following.unpredicted

    def predict(self, spec: RequestSpec) -> Prediction | None:
        """Predict a request that is sent now, considering requests expected after it."""
        return self._predictions.predict_one(spec, _NAME, self._clock())

    def reserve(self, spec: RequestSpec) -> None:
        """Make a reservation for a request that is being sent."""
        self._following.reserve(spec)

    async def ended(self, spec: RequestSpec, *, answered: bool = True) -> Seen:
        """Report that a request has ended; return what the predictor saw of it."""
        seen = self._following.complete(spec, answered=answered)
        if seen is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SEEN_WITHIN_S):
                    return await seen or Seen()
        return Seen()

    def close(self) -> None:
        """Stop following."""
        self._following.stop()

    def _shown(self, shown: bool) -> None:
        if shown:
            self._known.set()


@asynccontextmanager
async def following(address: str) -> AsyncIterator[Follower]:
    """Follow the predictor at `address` once it has a snapshot; raises `NothingKnown`."""
    follower = Follower(address)
    try:
        try:
            async with asyncio.timeout(_KNOWN_WITHIN_S):
                await follower.known()
        except TimeoutError as error:
            if not follower.is_connected:
                raise NothingKnown(f"there is no predictor at {address}") from error
            why = follower.unpredicted or "it has not heard of its engine yet"
            raise NothingKnown(f"the predictor at {address} knows nothing: {why}") from error
        yield follower
    finally:
        follower.close()


async def snapshot_at(address: str) -> Snapshot:
    """The snapshot that the predictor at `address` publishes; raises `NothingKnown`."""
    async with following(address) as follower:
        return follower.snapshot
