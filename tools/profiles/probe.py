"""A stream that decodes while an engine does other things: its tokens count the engine's steps.

A running sequence gets one token from every step. The time between two of its tokens is therefore
the time of as many steps, without the HTTP around them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


class Tick(NamedTuple):
    """A moment, and the tokens that the stream had then."""

    at_s: float
    tokens: int


class ProbeEndedError(Exception):
    """The stream reached its last token before the measurement's end."""


class Probe:
    """The ticks of one stream, and waiting for them; made by `probing`."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.ticks: list[Tick] = []
        self._news = asyncio.Event()
        self._ended = False

    async def at_tokens(self, tokens: int) -> Tick:
        """The first tick with `tokens` or more; ProbeEndedError where there will be none."""
        while not self.ticks or self.ticks[-1].tokens < tokens:
            await self._next()
        return next(tick for tick in self.ticks if tick.tokens >= tokens)

    async def after(self, at_s: float) -> Tick:
        """The first tick at or after `at_s`."""
        while not self.ticks or self.ticks[-1].at_s < at_s:
            await self._next()
        return next(tick for tick in self.ticks if tick.at_s >= at_s)

    def pairs(self, first: int, last: int) -> int:
        """Query-key pairs of the steps that made tokens `first` + 1 to `last` of the stream."""
        return decode_pairs(self.prompt_tokens, first, last)

    async def _next(self) -> None:
        if self._ended:
            raise ProbeEndedError
        self._news.clear()
        await self._news.wait()

    async def read(self, stream: AsyncIterator[Tick]) -> None:
        """Follow `stream` to its end."""
        try:
            async for tick in stream:
                self.ticks.append(tick)
                self._news.set()
        finally:
            self._ended = True
            self._news.set()


@asynccontextmanager
async def probing(stream: AsyncIterator[Tick], prompt_tokens: int) -> AsyncIterator[Probe]:
    """Read `stream` beside the block, and drop it at the block's end.

    An error of the stream ends the block with it.
    """
    probe = Probe(prompt_tokens)
    reading = asyncio.create_task(probe.read(stream))
    try:
        yield probe
    except ProbeEndedError:
        await reading  # raises where the stream did not end but fail
        raise
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def decode_pairs(prompt_tokens: int, first: int, last: int) -> int:
    """Pairs of the decode steps that make a sequence's output tokens `first` + 1 to `last`.

    The step that makes token t >= 2 attends the prompt, t - 2 tokens before and its own query.
    """
    count = last - first
    return count * (prompt_tokens - 1) + (last * (last + 1) - first * (first + 1)) // 2
