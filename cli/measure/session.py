"""Runs experiments on an endpoint: each gives a window, in which is known what the engine did."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from cli.measure.endpoint import Endpoint, RefusedError
from cli.measure.fit import Window
from cli.measure.plan import Beside, Decode, Experiment, Lone
from cli.measure.probe import Probe, ProbeEndedError, Tick, decode_pairs, probing
from foretell.model import BatchShape
from foretell.model.batch import prefill_pairs

# Ids that hardly any vocabulary lacks, and that are special tokens in few. Blocks of 16 drawn from
# them do not repeat, so that the prefix cache never hits.
_TOKEN_IDS = (range(1000, 2000), range(300, 400), range(100, 200))
_PROBE_PROMPT = 16
_SETTLE, _SETTLE_S = 4, 0.1  # tokens and time of the probe before anything is measured
_WINDOW_S = 1.0
_FEWEST_STEPS, _MOST_STEPS = 16, 64
_LEAST_STEPS = 8  # of a window that counts
_MARGIN = 3  # steps between what is surely admitted, or not yet finished, and a window
_ARRIVAL_S = 0.002  # an engine may take to take in one of many prompts
_CHUNK = 512  # least token budget expected of an engine
_IDLE_STEPS, _IDLE_S = 4, 0.05  # after which a dropped stream has surely left the engine


class Session:
    """Experiments on one endpoint. `budget` is a step's, in tokens; `longest` is max_model_len."""

    def __init__(
        self, endpoint: Endpoint, *, longest: int, budget: int, rng: random.Random
    ) -> None:
        self._endpoint = endpoint
        self._longest = longest
        self._budget = budget
        self._rng = rng
        self._ids = _TOKEN_IDS[0]
        self._step_s = 0.0
        self.requests = 0
        self.most_streams = 0
        """Streams that were seen decoding at once."""

    async def warm_up(self) -> float:
        """Find token ids that the model knows, let the engine compile, and time it roughly.

        Returns prompt tokens per second.
        """
        for self._ids in _TOKEN_IDS:
            try:
                await self._complete(1, 1, 1)
                break
            except RefusedError:
                if self._ids is _TOKEN_IDS[-1]:
                    raise
        length = max(1, min(512, self._longest // 2))
        for tokens in (16, length, length):
            seconds = await self._complete(1, max(1, min(tokens, length)), 1)
        async with self._probe() as probe:
            first = await self._settled(probe)
            last = await probe.at_tokens(first.tokens + _FEWEST_STEPS)
        self._step_s = (last.at_s - first.at_s) / (last.tokens - first.tokens)
        return length / seconds

    async def run(self, experiment: Experiment) -> Window | None:
        """Its window; None where the engine did not do what the window needs."""
        try:
            if isinstance(experiment, Lone):
                return await self._lone(experiment)
            if isinstance(experiment, Beside):
                return await self._beside(experiment)
            return await self._decode(experiment)
        except ProbeEndedError:
            return None

    async def _lone(self, asked: Lone) -> Window:
        chunks = _chunks(asked.tokens, self._budget)
        totals = _prefills(1, asked.tokens, chunks)
        await asyncio.sleep(max(_IDLE_S, _IDLE_STEPS * self._step_s))
        seconds = await self._complete(1, asked.tokens, 1)
        return Window("lone", seconds, chunks, totals, 1, asked.tokens)

    async def _beside(self, asked: Beside) -> Window:
        """From the last token before the first prompt is sent to the first after the last answer:
        between them all of them were computed, in whichever of the steps.
        """
        count = 0
        async with self._probe() as probe:
            first = await self._settled(probe)
            while not count or time.perf_counter() < first.at_s + _WINDOW_S / 2:
                await self._complete(asked.prompts, asked.tokens, 1)
                count += asked.prompts
            last = await probe.after(time.perf_counter())
        chunks = _chunks(asked.tokens, self._budget - 1)  # the probe takes a token of each step
        return _between(probe, first, last, "beside", _prefills(count, asked.tokens, chunks))

    async def _decode(self, asked: Decode) -> Window | None:
        """The probe is one of the streams; the others are one request, which is not streamed.

        Per stream that was, an API server would write an event per step, and this process read it.
        """
        steps = max(_FEWEST_STEPS, min(_MOST_STEPS, round(_WINDOW_S / self._step_s)))
        companions = asked.streams - 1
        if not companions:
            async with self._probe(asked.context) as probe:
                first = await self._settled(probe)
                last = await probe.at_tokens(first.tokens + steps)
                return _between(probe, first, last, "decode", BatchShape())
        spread = companions * (asked.context / _CHUNK + _ARRIVAL_S / self._step_s)
        for stretch in (1, 2):
            wanted = stretch * (steps + int(spread) + 2 * _MARGIN)
            tokens = min(wanted, self._longest - asked.context)
            async with self._probe() as probe:
                posted = (await self._settled(probe)).tokens
                await self._complete(companions, asked.context, tokens)
                answered = await probe.after(time.perf_counter())
            found = steady(probe, posted, answered, tokens)
            if found is not None:
                self.most_streams = max(self.most_streams, asked.streams)
                others = _companions(found, companions, asked.context)
                return _between(probe, found.first, found.last, "decode", others)
        return None

    async def _settled(self, probe: Probe) -> Tick:
        """The newest tick, once tokens come as they are made: the first may come in a bunch."""
        begun = await probe.at_tokens(1)
        await probe.after(begun.at_s + _SETTLE_S)
        return await probe.at_tokens(max(_SETTLE, probe.ticks[-1].tokens))

    def _probe(self, prompt_tokens: int = _PROBE_PROMPT) -> AbstractAsyncContextManager[Probe]:
        self.requests += 1
        prompt_tokens = min(prompt_tokens, self._longest // 2)
        stream = self._endpoint.stream(self._prompt(prompt_tokens), self._longest - prompt_tokens)
        return probing(stream, prompt_tokens)

    async def _complete(self, prompts: int, tokens: int, max_tokens: int) -> float:
        self.requests += prompts
        asked = [self._prompt(tokens) for _ in range(prompts)]
        return await self._endpoint.complete(asked, max_tokens)

    def _prompt(self, tokens: int) -> Sequence[int]:
        return self._rng.choices(self._ids, k=tokens)


class Steady(NamedTuple):
    """Two ticks between which a probe and its companions all decode."""

    first: Tick
    last: Tick
    admitted: int
    """Tokens the probe had when the companions had their first, on average."""


def steady(probe: Probe, posted: int, answered: Tick, tokens: int) -> Steady | None:
    """The steps in which all streams decoded; None if there were fewer than eight.

    The companions, of `tokens` output tokens each, were sent when the probe had `posted` tokens and
    had all ended by `answered`. None of them can have begun before the first nor ended after the
    second, so all of them decode from `tokens` steps before the second to `tokens` after the first.
    Where in between they were admitted is not seen: they count as spread evenly over it.
    """
    latest = answered.tokens - (tokens - 1)  # the last companion had its first token by then
    low, high = latest + _MARGIN, posted + tokens - _MARGIN
    inside = [tick for tick in probe.ticks if max(low, _SETTLE) <= tick.tokens <= high]
    if len(inside) < 2 or inside[-1].tokens - inside[0].tokens < _LEAST_STEPS:
        return None
    return Steady(inside[0], inside[-1], (posted + 1 + latest) // 2)


def _companions(found: Steady, count: int, context: int) -> BatchShape:
    """What `count` companions behind prompts of `context` tokens decode between two ticks."""
    before = found.admitted - 1  # a companion's n-th token comes n - 1 steps after its first
    pairs = decode_pairs(context, found.first.tokens - before, found.last.tokens - before)
    steps = found.last.tokens - found.first.tokens
    return BatchShape(decode_seqs=count * steps, decode_pairs=count * pairs)


def _between(probe: Probe, first: Tick, last: Tick, kind: str, beside: BatchShape) -> Window:
    """The window between two ticks: the probe's own decodes, and all that was computed `beside`."""
    steps = last.tokens - first.tokens
    totals = BatchShape(
        prefill_seqs=beside.prefill_seqs,
        prefill_tokens=beside.prefill_tokens,
        prefill_pairs=beside.prefill_pairs,
        decode_seqs=beside.decode_seqs + steps,
        decode_pairs=beside.decode_pairs + probe.pairs(first.tokens, last.tokens),
    )
    return Window(kind, last.at_s - first.at_s, steps, totals)


def _chunks(tokens: int, budget: int) -> int:
    return -(-tokens // max(1, budget))


def _prefills(count: int, tokens: int, chunks: int) -> BatchShape:
    """Totals of `count` whole prompts in `chunks` chunks each; pairs do not depend on those."""
    return BatchShape(count * chunks, count * tokens, count * prefill_pairs(tokens, 0))
