"""Sends chats at random times and notes what was predicted of each and what came."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from foretell.tools.live.stream import NoStream, StreamClient
from foretell.workload.chats import Chat

DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Answered:
    """One chat that was answered; times in seconds."""

    ttft_s: float
    e2e_s: float
    predicted_ttft_s: float | None
    """None where the cluster predicted nothing, as the next one."""
    predicted_e2e_s: float | None


@dataclass(slots=True)
class Outcome:
    """What came of all of them."""

    answered: list[Answered]
    failed: list[str]
    """Why, for each that was not."""


async def send(
    client: StreamClient,
    model: str,
    chats: Sequence[Chat],
    rate_per_s: float,
    seed: int,
    note: Callable[[Outcome], None],
) -> Outcome:
    """Send `chats` with gaps of a Poisson process and wait for all answers."""
    draws, outcome, begun = Random(f"{seed} demo"), Outcome([], []), time.monotonic()

    async def ask(chat: Chat) -> None:
        try:
            outcome.answered.append(await _ask(client, model, chat))
        except NoStream as error:
            outcome.failed.append(str(error))
        note(outcome)

    due = begun
    async with asyncio.TaskGroup() as tasks:
        for chat in chats:
            await asyncio.sleep(due - time.monotonic())
            tasks.create_task(ask(chat))
            due += draws.expovariate(rate_per_s)
    return outcome


async def _ask(client: StreamClient, model: str, chat: Chat) -> Answered:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": chat.prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_unix_s = time.time()
    timing = await client.stream("/v1/chat/completions", body, DEADLINE_S)

    def predicted(name: str) -> float | None:
        text = timing.headers.get(f"x-foretell-predicted-{name}-s")
        return float(text) if text else None

    return Answered(
        timing.first_unix_s - sent_unix_s,
        timing.last_unix_s - sent_unix_s,
        predicted("ttft"),
        predicted("e2e"),
    )
