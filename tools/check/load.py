"""The requests that stages send, and the timing of their answers."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

from foretell.model import OFFLINE_PRIORITY
from foretell.tools.check.engine_args import LENGTH_KEY
from foretell.tools.live.load import (
    HEADROOM_S,
    MixedLengths,
    at_their_times,
    bursty,
    under_way,
)
from foretell.tools.live.stream import StreamClient, completion, random_prompt
from foretell.workload import Arrival

_DEADLINE_S = 600.0
_ENDLESS = 20_000


@dataclass(frozen=True, slots=True)
class Answered:
    """One request as its client saw it; seconds from when it was due."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    due_s: float
    """Counted from the start of its run."""
    ttft_s: float
    e2e_s: float
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache, if the engine reports them."""

    @property
    def tpot_s(self) -> float:
        """Mean time of a token after the first."""
        return (self.e2e_s - self.ttft_s) / max(1, self.output_tokens - 1)

    def good(self, ttft_target_s: float, tpot_target_s: float) -> bool:
        """Whether it met both targets."""
        return self.ttft_s <= ttft_target_s and self.tpot_s <= tpot_target_s


Body = Callable[[Arrival], dict[str, Any]]


def online(most_tokens: int, model: str, prefix: str) -> Body:
    """A function that makes bodies of requests to `model` whose lengths only the engine knows.

    All have the limit `most_tokens`, which says nothing about their lengths. Prompts are random
    token ids that share no beginning with each other, nor with those of another `prefix`.
    """

    def body(arrival: Arrival) -> dict[str, Any]:
        prompt = random_prompt(Random(f"{prefix} {arrival.request_id}"), arrival.prompt_tokens)
        return completion(model, prompt, most_tokens, {LENGTH_KEY: arrival.output_tokens})

    return body


async def send(client: StreamClient, arrivals: Sequence[Arrival], body: Body) -> list[Answered]:
    """Send each request when it is due, and wait for all; raises `NoStream`."""
    began = time.time() + HEADROOM_S
    return await at_their_times(arrivals, lambda arrival: _ask(client, arrival, body, began))


async def keep_busy(
    client: StreamClient,
    requests: Iterator[Arrival],
    body: Body,
    concurrency: int,
    seconds: float,
    answered: list[Answered] | None = None,
) -> list[Answered]:
    """Keep `concurrency` requests in flight for `seconds`, then wait for all; raises `NoStream`.

    Answered requests are appended to `answered` as they end, if it is given.
    """
    began = time.time()
    done = [] if answered is None else answered

    async def serve(request: Arrival) -> None:
        due = replace(request, t_s=time.time() - began)
        done.append(await _ask(client, due, body, began))

    await under_way(requests, serve, concurrency, time.monotonic() + seconds)
    return done


def endless(lengths: MixedLengths, seed: int) -> Iterator[Arrival]:
    """Very many requests, whose times do not matter."""
    return iter(bursty(_ENDLESS, 1.0, lengths, seed))


def questions(seed: int, texts: int, text_tokens: int, most_output: int) -> Iterator[Arrival]:
    """Offline requests without end: short questions on a few long texts (`offline`)."""
    draws = Random(seed)
    for number in count():
        text = draws.randrange(texts)
        output = draws.randint(8, max(9, most_output // 4))
        yield Arrival(0.0, text_tokens, output, f"offline-{seed}-{text}-{number}")


def offline(model: str, prefix: str) -> Body:
    """A function that makes bodies of `questions`: those on one text share its beginning."""

    def body(arrival: Arrival) -> dict[str, Any]:
        text = arrival.request_id.split("-")[2]
        start = random_prompt(Random(f"{prefix} text {text}"), arrival.prompt_tokens - 16)
        question = random_prompt(Random(f"{prefix} {arrival.request_id}"), 16)
        extra = {LENGTH_KEY: arrival.output_tokens, "class": "offline"}
        limit = arrival.output_tokens + 1
        return completion(model, start + question, limit, extra, priority=OFFLINE_PRIORITY)

    return body


async def _ask(client: StreamClient, arrival: Arrival, body: Body, began: float) -> Answered:
    timing = await client.complete(body(arrival), _DEADLINE_S)
    due = began + arrival.t_s
    return Answered(
        arrival.request_id,
        arrival.prompt_tokens,
        timing.output_tokens,
        arrival.t_s,
        timing.first_unix_s - due,
        timing.last_unix_s - due,
        timing.cached_tokens,
    )
