"""Traffic from the official SDK that records the outcome of every request."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from openai import APIError, AsyncOpenAI


@dataclass
class Fate:
    """What the client of one request saw."""

    prompt: str
    max_tokens: int
    stream: bool
    text: str = ""
    begun: bool = False
    """Whether the headers of a stream have come."""
    tokens: int = 0
    error: str = ""

    @property
    def lost(self) -> bool:
        """Whether it failed before the client had seen a token."""
        return bool(self.error) and self.tokens == 0


async def one(client: AsyncOpenAI, model: str, fate: Fate) -> Fate:
    """Send one completion, streamed or not."""
    try:
        if not fate.stream:
            answer = await client.completions.create(
                model=model, prompt=fate.prompt, max_tokens=fate.max_tokens, temperature=0
            )
            fate.text = answer.choices[0].text
            fate.tokens = answer.usage.completion_tokens if answer.usage else 0
            return fate
        stream = await client.completions.create(
            model=model, prompt=fate.prompt, max_tokens=fate.max_tokens, temperature=0, stream=True
        )
        fate.begun = True
        async for chunk in stream:
            fate.text += chunk.choices[0].text
            fate.tokens += 1
    except (APIError, OSError) as error:
        fate.error = repr(error)
    except Exception as error:  # what a broken connection raises depends on the HTTP library
        fate.error = f"broken: {error!r}"
    return fate


async def run(
    endpoint: str,
    model: str,
    requests: int,
    *,
    seed: int,
    mishap: Callable[[], Awaitable[None]] | None = None,
    over_s: float = 3.0,
    retries: int = 2,
) -> list[Fate]:
    """Spread `requests` over `over_s` seconds, with `mishap` at half that time.

    `retries`: how often the SDK repeats a request whose answer has not begun; its default is 2.
    """
    rng = Random(seed)
    fates = [
        Fate(f"{i} " + "word " * rng.randint(1, 200), rng.randint(5, 120), i % 2 == 0)
        for i in range(requests)
    ]
    async with AsyncOpenAI(
        base_url=f"{endpoint}/v1", api_key="none", timeout=60, max_retries=retries
    ) as client:

        async def later(fate: Fate, delay_s: float) -> Fate:
            await asyncio.sleep(delay_s)
            return await one(client, model, fate)

        tasks = [asyncio.create_task(later(f, rng.uniform(0, over_s))) for f in fates]
        await asyncio.sleep(over_s / 2)
        if mishap is not None:
            await mishap()
        return list(await asyncio.gather(*tasks))
