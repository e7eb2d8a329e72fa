"""Clients that read every byte of their answers and record what they received."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

REQUESTS = 200
BEFORE = 60
"""Requests that are sent before the fault; the others are sent while it lasts."""
_MOST_TRIES = 5
_TIMEOUT_S = 120.0
_WORDS = ("river", "stone", "cloud", "engine", "paper", "window", "market", "garden", "letter")


@dataclass
class Seen:
    """What the client of one request received."""

    text: str = ""
    ends: list[str] = field(default_factory=list)
    """Finish reasons, and "done" for the last event of a stream."""
    ids: set[str] = field(default_factory=set)
    completion_tokens: int = 0
    tries: int = 0
    begun_tries: int = 0
    """Tries that failed after the client had received text."""
    error: str = ""
    seconds: float = 0.0
    pause_s: float = 0.0
    """The longest time without data."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    path: str
    body: dict[str, Any]

    @property
    def streams(self) -> bool:
        """Whether the answer comes as server-sent events."""
        return bool(self.body.get("stream"))


def requests(model: str, seed: int) -> list[Asked]:
    """Completions and chats, three of four as streams, all greedy and of a fixed length."""
    rng = Random(seed)
    made = []
    for number in range(REQUESTS):
        prompt = f"{number} " + " ".join(rng.choices(_WORDS, k=rng.randint(1, 60)))
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": rng.randint(5, 60),
            "temperature": 0,
            "ignore_eos": True,
        }
        if number % 4:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if number % 2:
            made.append(Asked("/v1/completions", body | {"prompt": prompt}))
        else:
            messages = [{"role": "user", "content": prompt}]
            made.append(Asked("/v1/chat/completions", body | {"messages": messages}))
    return made


async def send(session: aiohttp.ClientSession, asked: Asked, *, retries: bool) -> Seen:
    """Send a request; with `retries`, send it again after an answer that broke off."""
    seen, began_s = Seen(), time.monotonic()
    while True:
        seen.tries += 1
        seen.text, seen.error, seen.completion_tokens = "", "", 0
        seen.ends.clear()
        seen.ids.clear()
        try:
            await _ask(session, asked, seen)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            seen.error = repr(error)
        if not seen.error or not retries or seen.tries == _MOST_TRIES:
            seen.seconds = time.monotonic() - began_s
            return seen
        seen.begun_tries += bool(seen.text)
        await asyncio.sleep(0.2)


async def _ask(session: aiohttp.ClientSession, asked: Asked, seen: Seen) -> None:
    heard_s = time.monotonic()
    async with session.post(asked.path, json=asked.body) as response:
        if response.status != 200:
            seen.error = f"{response.status} {(await response.read()).decode()[:200]}"
            return
        if not asked.streams:
            _take(await response.json(), seen)
            return
        async for line in response.content:
            now_s = time.monotonic()
            seen.pause_s, heard_s = max(seen.pause_s, now_s - heard_s), now_s
            text = line.strip()
            if text == b"data: [DONE]":
                seen.ends.append("done")
            elif text:
                _take(json.loads(text.removeprefix(b"data: ")), seen)


def _take(event: dict[str, Any], seen: Seen) -> None:
    if "error" in event:
        seen.error = f"event {event['error']['code']}"
        return
    seen.ids.add(event["id"])
    usage = event.get("usage")
    seen.completion_tokens = usage["completion_tokens"] if usage else seen.completion_tokens
    for choice in event["choices"]:
        part = choice.get("delta") or choice.get("message") or choice
        seen.text += part.get("content") or part.get("text") or ""
        if choice["finish_reason"]:
            seen.ends.append(choice["finish_reason"])


def session(endpoint: str) -> aiohttp.ClientSession:
    """A session with a new connection for each request, so that no closing one is reused."""
    return aiohttp.ClientSession(
        endpoint,
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
    )
