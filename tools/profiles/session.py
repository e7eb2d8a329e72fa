"""Runs experiments on an endpoint: each gives a window, in which is known what the engine did."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from foretell.model import BatchShape
from foretell.model.batch import prefill_pairs
from foretell.tools.profiles.endpoint import Endpoint, RefusedError
from foretell.tools.profiles.fit import Window
from foretell.tools.profiles.plan import Beside, Decode, Experiment, Lone
from foretell.tools.profiles.probe import Probe, ProbeEndedError, Tick, decode_pairs, probing

# Ids that hardly any vocabulary lacks, and that are special tokens in few. Blocks of 16 drawn from
# them do not repeat, so that the prefix cache never hits.
_TOKEN_IDS = (range(1000, 2000), range(300, 400), range(100, 200))
_PROBE_PROMPT = 16
_SETTLE, _SETTLE_S = 4, 0.1  # tokens and time of the probe before anything is measured
_EXPERIMENT_S = 0.7  # about, of windows
_FEWEST_STEPS, _MOST_STEPS = 16, 64  # that all streams shall decode together
_LEAST_STEPS = 8  # of a window
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

    async def run(self, experiment: Experiment) -> list[Window]:
        """Its windows: many small ones, so that a stall spoils few; none where the engine did not
        do what they need.
        """
        try:
            if isinstance(experiment, Lone):
                return [await self._lone(experiment)]
            if isinstance(experiment, Beside):
                return await self._beside(experiment)
            return await self._decode(experiment)
        except ProbeEndedError:
            return []

    async def _lone(self, asked: Lone) -> Window:
        chunks = _chunks(asked.tokens, self._budget)
        totals = _prefills(1, asked.tokens, chunks)
        await asyncio.sleep(max(_IDLE_S, _IDLE_STEPS * self._step_s))
        seconds = await self._complete(1, asked.tokens, 1)
        return Window("lone", str(asked), seconds, chunks, totals, 1, asked.tokens)

    async def _beside(self, asked: Beside) -> list[Window]:
        """From a token before prompts are sent to the first after their answer: between them they
        were computed, in whichever of the steps.
        """
        chunks = _chunks(asked.tokens, self._budget - 1)  # the probe takes a token of each step
        windows: list[Window] = []
        async with self._probe() as probe:
            first = last = await self._settled(probe)
            while not windows or last.at_s < first.at_s + _EXPERIMENT_S:
                begin, count = last, 0
                while last.tokens < begin.tokens + _LEAST_STEPS:
                    await self._complete(asked.prompts, asked.tokens, 1)
                    last = await probe.after(time.perf_counter())
                    count += asked.prompts
                beside = _prefills(count, asked.tokens, chunks)
                windows.append(_between(probe, begin, last, asked, beside))
        return windows

    async def _decode(self, asked: Decode) -> list[Window]:
        """The probe is one of the streams; the others are one request, which is not streamed.

        Per stream that was, an API server would write an event per step, and this process read it.
        """
        steps = max(_FEWEST_STEPS, min(_MOST_STEPS, round(_EXPERIMENT_S / self._step_s)))
        companions = asked.streams - 1
        if not companions:
            async with self._probe(asked.context) as probe:
                first = await self._settled(probe)
                await probe.at_tokens(first.tokens + steps)
            return _decodes(probe, Steady(first, probe.ticks[-1], 0), asked)
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
                return _decodes(probe, found, asked)
        return []

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


def _decodes(probe: Probe, found: Steady, asked: Decode) -> list[Window]:
    """Windows of eight steps or little more in which all streams decode."""
    ticks = [t for t in probe.ticks if found.first.tokens <= t.tokens <= found.last.tokens]
    windows, begin = [], ticks[0]
    for tick in ticks:
        if tick.tokens - begin.tokens >= _LEAST_STEPS:
            others = _companions(begin, tick, found.admitted, asked)
            windows.append(_between(probe, begin, tick, asked, others))
            begin = tick
    return windows


def _companions(first: Tick, last: Tick, admitted: int, asked: Decode) -> BatchShape:
    """What all streams but the probe decode between two ticks."""
    count, before = asked.streams - 1, admitted - 1
    # A companion's n-th token comes n - 1 steps after its first.
    pairs = decode_pairs(asked.context, first.tokens - before, last.tokens - before)
    steps = last.tokens - first.tokens
    return BatchShape(decode_seqs=count * steps, decode_pairs=count * pairs)


def _between(
    probe: Probe, first: Tick, last: Tick, asked: Beside | Decode, beside: BatchShape
) -> Window:
    """The window between two ticks: the probe's own decodes, and all that was computed `beside`."""
    steps = last.tokens - first.tokens
    totals = BatchShape(
        prefill_seqs=beside.prefill_seqs,
        prefill_tokens=beside.prefill_tokens,
        prefill_pairs=beside.prefill_pairs,
        decode_seqs=beside.decode_seqs + steps,
        decode_pairs=beside.decode_pairs + probe.pairs(first.tokens, last.tokens),
    )
    kind = "beside" if isinstance(asked, Beside) else "decode"
    return Window(kind, str(asked), last.at_s - first.at_s, steps, totals)


def _chunks(tokens: int, budget: int) -> int:
    return -(-tokens // max(1, budget))


def _prefills(count: int, tokens: int, chunks: int) -> BatchShape:
    """Totals of `count` whole prompts in `chunks` chunks each; pairs do not depend on those."""
    return BatchShape(count * chunks, count * tokens, count * prefill_pairs(tokens, 0))
