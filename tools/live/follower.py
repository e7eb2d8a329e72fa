"""Follows one predictor, as a scheduler does that sends all of an engine's requests."""

import asyncio
from contextlib import suppress

from foretell.engine.snapshot_cache import SnapshotCache
from foretell.length.distribution import knots
from foretell.model import Prediction, RequestSpec
from foretell.placement.cached import CachedPredictions
from foretell.services.process.traffic import OPEN
from foretell.services.scheduler.placing.following import Following, Seen

_NAME = "engine"
_SEEN_WITHIN_S = 10.0


class Follower:
    """Make it in a running event loop; `close` ends it."""

    def __init__(self, address: str) -> None:
        """`address` is the predictor's own."""
        cache = SnapshotCache(knots)
        self.engine = cache.follow(_NAME)
        self._predictions = CachedPredictions(cache)
        self._known = asyncio.Event()
        self._following = Following(address, OPEN, self.engine, lambda reason: None, self._shown)
        self._clock = asyncio.get_running_loop().time
        self._following.start()

    async def known(self) -> None:
        """Until there is a snapshot."""
        await self._known.wait()

    def predict(self, spec: RequestSpec) -> Prediction | None:
        """What becomes of a request that is sent now, with those to be expected after it."""
        return self._predictions.predict_one(spec, _NAME, self._clock())

    def reserve(self, spec: RequestSpec) -> None:
        """The request is on its way."""
        self._following.reserve(spec)

    async def ended(self, spec: RequestSpec, *, answered: bool = True) -> Seen:
        """The request has ended; what the predictor saw of it."""
        seen = self._following.complete(spec, answered=answered)
        if seen is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SEEN_WITHIN_S):
                    return await seen or Seen()
        return Seen()

    def close(self) -> None:
        """Follow no longer."""
        self._following.stop()

    def _shown(self, shown: bool) -> None:
        if shown:
            self._known.set()
