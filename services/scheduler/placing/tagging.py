"""Asks the tagger for better length estimates, for requests that are placed already or that wait
briefly for the answer."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

import grpc

from foretell import wire
from foretell.model import LengthEstimate
from foretell.services.process import calls
from foretell.services.process.traffic import OPEN, Traffic
from foretell.v1 import tagger_pb2, tagger_pb2_grpc

logger = logging.getLogger(__name__)

_PACE_S = 0.25
"""Least time between calls if no request waits for the answer. Asking takes processor time that
others could use, and the answers have not been seen to be worth much of it."""
_MOST_TOGETHER = 16  # requests in a call
_LOST_S = 10.0  # a call without an answer for so long is given up

_GRPC_OPTIONS = [
    # A tagger that comes back must be noticed within a second, not after gRPC's default 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

Describe = Callable[[], tagger_pb2.TagRequest]


def open_channel(address: str, traffic: Traffic = OPEN) -> grpc.aio.Channel:
    """A channel to the tagger."""
    return calls.channel(traffic, address, _GRPC_OPTIONS)


class TaggerClient:
    """Asks about some requests. One call is in progress at a time; the next one asks about the
    latest requests. So a slow tagger, which may only get idle processor time, is asked about few.
    Create it in a running event loop."""

    def __init__(self, stub: tagger_pb2_grpc.TaggerStub, wait_s: float = 0.0) -> None:
        """`wait_s`: the longest wait of `answer`; 0: `answer` is never called."""
        self._stub = stub
        self.wait_s = wait_s
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[LengthEstimate | None]] = {}
        self.listener: Callable[[str, LengthEstimate], None] = lambda key, length: None
        """Called with a request's key and the length model's estimate for it."""
        self._unsent = deque[tuple[str, Describe]](maxlen=_MOST_TOGETHER)
        self._called_s = inf  # when the call under way was made
        self._due_s = 0.0  # when the next one may be made
        self._calling: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Stop asking."""
        if self._calling is not None:
            self._calling.cancel()

    def ask(self, key: str, describe: Describe) -> None:
        """Ask about a request, unless later ones displace it before the next call. `describe` is
        called when it is sent."""
        self._unsent.append((key, describe))
        if self._calling is None:
            self._calling = self._loop.create_task(self._call())

    async def answer(self, key: str, describe: Describe) -> LengthEstimate | None:
        """Ask about a request, and return the length model's estimate; None if it does not come in
        time. Return None at once if an earlier answer is overdue."""
        self.ask(key, describe)
        if self._called_s < self._loop.time() - self.wait_s:
            return None
        answered: asyncio.Future[LengthEstimate | None] = self._loop.create_future()
        self._waiting[key] = answered
        try:
            async with asyncio.timeout(self.wait_s):
                return await answered
        except TimeoutError:
            return None
        finally:
            del self._waiting[key]

    async def _call(self) -> None:
        """Ask about all unsent requests; those that come before a call share it."""
        try:
            while self._unsent:
                await asyncio.sleep(self._due_s - self._loop.time())
                asked = list(self._unsent)
                self._unsent.clear()
                self._called_s = self._loop.time()
                self._due_s = 0.0 if self.wait_s else self._called_s + _PACE_S
                estimates = await self._estimates([describe() for _, describe in asked])
                self._called_s = inf
                for (key, _), estimate in zip(asked, estimates, strict=True):
                    self._answered(key, estimate)
        finally:
            self._calling, self._called_s = None, inf

    async def _estimates(
        self, requests: list[tagger_pb2.TagRequest]
    ) -> Sequence[LengthEstimate | None]:
        """The length model's estimate for each request; None where it has none."""
        message = tagger_pb2.TagBatch(requests=requests)
        try:
            batch = await self._stub.TagMany(message, timeout=_LOST_S)
            estimates = [wire.length_from_proto(each) for each in batch.estimates]
            if len(estimates) != len(requests):
                raise wire.WireError(f"{len(estimates)} estimates of {len(requests)} requests")
        except (grpc.aio.AioRpcError, wire.WireError) as error:
            logger.debug("tagger: %s", error)
            return [None] * len(requests)
        # Other sources know less than this scheduler.
        return [each if each.source == "model" else None for each in estimates]

    def _answered(self, key: str, estimate: LengthEstimate | None) -> None:
        answered = self._waiting.get(key)
        if answered is not None and not answered.done():
            answered.set_result(estimate)
        elif estimate is not None:
            self.listener(key, estimate)
