"""The load of a live measurement: bursty arrivals of mixed lengths, from a seed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import exp, log
from random import Random
from typing import Any, TypeVar

from foretell.workload import Arrival, Draws, LogNormal, gamma, stream

# Rates of the phases, which are equally long, as multiples of the mean rate: calm, busy, and a rush
# that exceeds the capacity of an engine whose mean load is 70%.
_PHASES = (0.6, 1.0, 0.7, 1.7, 0.5, 1.2, 0.9, 1.4)
_PHASE_REQUESTS = 20.0
"""Requests in a phase at the mean rate."""
_CV = 1.5  # of the gaps within a phase; 1 would be Poisson
HEADROOM_S = 0.2
"""Time from the start of sending to the first request."""

T = TypeVar("T")


async def at_their_times(
    requests: Iterable[Arrival], serve: Callable[[Arrival], Coroutine[Any, Any, T]]
) -> list[T]:
    """Serve each request when it is due, `HEADROOM_S` from now at the earliest, and wait for all;
    raises the errors of `serve` as a group."""
    begun_s = time.monotonic() + HEADROOM_S
    async with asyncio.TaskGroup() as group:
        tasks = []
        for request in requests:
            await asyncio.sleep(begun_s + request.t_s - time.monotonic())
            tasks.append(group.create_task(serve(request)))
    return [task.result() for task in tasks]


async def under_way(
    requests: Iterator[Arrival],
    serve: Callable[[Arrival], Awaitable[object]],
    concurrency: int,
    until_s: float,
) -> None:
    """Keep `concurrency` requests in flight, and start none after `until_s` on the monotonic clock;
    raises the errors of `serve` as a group."""

    async def worker() -> None:
        for request in requests:
            if time.monotonic() > until_s:
                return
            await serve(request)

    async with asyncio.TaskGroup() as workers:
        for _ in range(concurrency):
            workers.create_task(worker())


@dataclass(frozen=True, slots=True)
class MixedLengths:
    """Log-uniform prompt lengths and log-normal output lengths, in tokens and within bounds."""

    least_prompt: int = 16
    most_prompt: int = 1000
    least_output: int = 8
    most_output: int = 300
    mean_output: float = 150.0
    output_cv: float = 0.7

    def sample(self, draws: Draws) -> tuple[int, int]:
        """Prompt and output tokens of one request."""
        low, high = log(self.least_prompt), log(self.most_prompt)
        prompt = round(exp(low + (high - low) * draws.random()))
        output = LogNormal(self.mean_output, self.output_cv, self.most_output).sample(draws)
        return prompt, max(self.least_output, output)

    def within(self, max_model_len: int) -> "MixedLengths":
        """Lengths that fit into `max_model_len` tokens; 0: no limit known."""
        if not max_model_len or self.most_prompt + self.most_output <= max_model_len:
            return self
        most_prompt = max(self.least_prompt, max_model_len * 3 // 4)
        most_output = max(self.least_output, max_model_len - most_prompt)
        return MixedLengths(
            self.least_prompt,
            most_prompt,
            self.least_output,
            most_output,
            min(self.mean_output, most_output / 2),
            self.output_cv,
        )


def bursty(count: int, rate_per_s: float, lengths: MixedLengths, seed: int) -> list[Arrival]:
    """`count` requests with a mean rate of `rate_per_s`; times are seconds from the start.

    Gaps are Gamma-distributed, and their mean follows `_PHASES`. The same seed gives the same
    requests in the same order at any rate; the rate only stretches time.
    """
    draws = Random(seed)
    times_s = (t / rate_per_s for t in _warped(gamma(1.0, _CV, draws)))
    return stream(count, islice(times_s, count), lengths, draws, prefix=f"live-{seed}-")


def _warped(times: Iterable[float]) -> Iterator[float]:
    """Stretch a stream of rate 1 so that its rate follows the phases; the mean stays 1.

    Phase i takes `_PHASE_REQUESTS * _PHASES[i] / mean` of the stream, and lasts `_PHASE_REQUESTS`.
    """
    mean = sum(_PHASES) / len(_PHASES)
    index, begun, ends = 0, 0.0, _PHASE_REQUESTS * _PHASES[0] / mean
    for t in times:
        while t >= ends:
            begun, index = ends, index + 1
            ends += _PHASE_REQUESTS * _PHASES[index % len(_PHASES)] / mean
        yield _PHASE_REQUESTS * (index + (t - begun) / (ends - begun))
