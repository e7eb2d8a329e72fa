"""Times streams of tokens with little work per token.

Client, engine and predictor of a measurement may share few cores: the client's work slows the
engine, and the client's delays would count as the engine's. So an answer is not parsed: its times
are those when its body begins and when its last event has come.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

_DONE = b"data: [DONE]"
_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d+)')
_TAIL_BYTES = 2048  # the end of an answer, kept because it has the usage
_KEPT_S = 4.0  # uvicorn closes idle connections after 5 s, and must not do so under a request


class NoStream(Exception):
    """The engine did not answer with the stream of tokens that was asked for."""


def completion(
    model: str, prompt: list[int], max_tokens: int, extra: dict[str, Any], **more: object
) -> dict[str, Any]:
    """The body of a completion that is streamed with its usage; `extra` are its `vllm_xargs`."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "vllm_xargs": extra,
        **more,
    }


def random_prompt(draws: Random, tokens: int) -> list[int]:
    """Ids of ordinary tokens of any vocabulary."""
    return draws.choices(range(100, 1000), k=tokens)


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one answer, on the wall clock."""

    first_unix_s: float
    """When the first event had come."""
    last_unix_s: float
    """When the last event had come."""
    output_tokens: int
    """The engine's own count, like `cached_tokens`."""
    cached_tokens: int
    """Of the prompt; 0 if the engine does not report it (`--enable-prompt-tokens-details`)."""
    headers: Mapping[str, str]
    """The headers of the answer; names are in lower case."""


class StreamClient:
    """Sends requests to one engine, within its context."""

    def __init__(self, url: str, *, api_key: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an HTTP address: {url}")
        self._url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_S),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(),
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def complete(self, body: dict[str, Any], deadline_s: float) -> Timing:
        """Stream the completion `body`; raises `NoStream`."""
        return await self.stream("/v1/completions", body, deadline_s)

    async def stream(self, path: str, body: dict[str, Any], deadline_s: float) -> Timing:
        """Stream the answer to `body` at `path`; raises `NoStream`."""
        first_unix_s = last_unix_s = 0.0
        tail = b""
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._session.post(f"{self._url}{path}", json=body) as response,
            ):
                async for data in response.content.iter_any():
                    now = time.time()
                    first_unix_s = first_unix_s or now
                    tail = tail[-_TAIL_BYTES:] + data
                    if not last_unix_s and _DONE in tail:
                        last_unix_s = now
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NoStream(f"no answer within {deadline_s:g} s: {error!r}") from error
        found = _TOKENS.findall(tail)
        if response.status != 200 or not last_unix_s or not found:
            raise NoStream(f"not a stream with usage: {tail.decode(errors='replace')}")
        cached = int((_CACHED.findall(tail) or [0])[-1])
        headers = {name.lower(): text for name, text in response.headers.items()}
        return Timing(first_unix_s, last_unix_s, int(found[-1]), cached, headers)
