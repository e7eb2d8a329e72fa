"""A live OpenAI endpoint of vLLM: what it says of itself, completions, and their times."""

import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from foretell.tools.profiles.imports import ProfileError
from foretell.tools.profiles.probe import Tick

_CONNECT_S = 10.0
_SILENCE_S = 120.0  # an engine may have to compile, or to prefill much, before it says anything
_SAID_CHARS = 300  # of an endpoint's own words in an error
_CACHE_INFO = "vllm:cache_config_info"
_QUEUES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


class EndpointError(ProfileError):
    """The endpoint cannot be measured; the text says why."""


class RefusedError(EndpointError):
    """The endpoint answers, but not with a completion."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What an endpoint says of itself."""

    model: str
    max_model_len: int
    """0 if the endpoint does not say."""
    version: str
    """Empty if the endpoint does not say."""
    block_size_tokens: int = 0
    kv_blocks: int = 0
    """Without vLLM's null block; both 0 where /metrics does not tell."""
    engines: int = 1
    """Number of engines behind the endpoint, as far as /metrics tells."""
    requests: int = 0
    """Requests that they serve now."""

    @property
    def engine(self) -> str:
        """What was measured, for the profile's provenance; an emulated engine is called one."""
        if self.version == "emulated":
            return "an emulated engine"
        return f"vLLM {self.version}" if self.version else "an endpoint of unknown version"


class Endpoint:
    """One endpoint and its connections; made by `connected`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._model = ""

    async def facts(self, model: str) -> Facts:
        """Ask what is served; `model` chooses where there are several."""
        card = _chosen(await self._get_json("/v1/models"), model)
        self._model = str(card["id"])
        metrics = await self._get_text("/metrics")
        block_size, blocks = cache_facts(metrics)
        queues = [_samples(metrics, name) for name in _QUEUES]
        return Facts(
            model=self._model,
            max_model_len=int(card.get("max_model_len") or 0),
            version=_version(await self._get_text("/version")),
            block_size_tokens=block_size,
            kv_blocks=blocks,
            engines=max(1, *map(len, queues)),
            requests=int(sum(map(sum, queues))),
        )

    async def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
        """Complete every prompt (token ids) with exactly `max_tokens` tokens; returns the seconds.

        From sending to having read the whole answer, which is not streamed.
        """
        started = time.perf_counter()
        try:
            response = await self._http.post(
                "/v1/completions", json=self._body(prompts, max_tokens)
            )
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        seconds = time.perf_counter() - started
        if response.status_code != 200:
            raise _refusal(response.status_code, response.content)
        try:
            made = response.json()["usage"]["completion_tokens"]
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError("a completion of the endpoint has no usage") from error
        if made != len(prompts) * max_tokens:
            raise RefusedError(
                f"asked for {len(prompts)} times {max_tokens} tokens, the endpoint made {made}"
            )
        return seconds

    async def stream(self, prompt: Sequence[int], max_tokens: int) -> AsyncIterator[Tick]:
        """Stream one completion; a tick whenever tokens arrive."""
        asked = self._body([prompt], max_tokens) | {
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        try:
            async with self._http.stream("POST", "/v1/completions", json=asked) as response:
                if response.status_code != 200:
                    raise _refusal(response.status_code, await response.aread())
                tokens = 0
                async for line in response.aiter_lines():
                    at_s = time.perf_counter()
                    made = _tokens(line, tokens)
                    if made > tokens:
                        tokens = made
                        yield Tick(at_s, tokens)
        except httpx.HTTPError as error:
            raise self._silent(error) from error

    def _body(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": [list(prompt) for prompt in prompts],
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }

    async def _get_json(self, path: str) -> Any:
        try:
            response = await self._http.get(path)
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        if response.status_code != 200:
            raise _refusal(response.status_code, response.content, path)
        try:
            return response.json()
        except ValueError as error:
            raise _no_endpoint(path) from error

    async def _get_text(self, path: str) -> str:
        """The text of an optional page; empty if there is none."""
        try:
            response = await self._http.get(path)
        except httpx.HTTPError:
            return ""
        return response.text if response.status_code == 200 else ""

    def _silent(self, error: httpx.HTTPError) -> EndpointError:
        reason = str(error) or type(error).__name__
        return EndpointError(f"{self._http.base_url} does not answer: {reason}")


@asynccontextmanager
async def connected(url: str, api_key: str) -> AsyncIterator[Endpoint]:
    """The endpoint at `url`, with or without /v1; EndpointError where `url` is no address."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        address = httpx.URL(base)
    except httpx.InvalidURL as error:
        raise EndpointError(f"not an address: {url}") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise EndpointError(f"not an HTTP address: {url}")
    timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=timeout) as http:
        yield Endpoint(http)


def cache_facts(metrics: str) -> tuple[int, int]:
    """Block size and usable KV blocks in vLLM's Prometheus text; zeros where it tells none."""
    line = next((row for row in metrics.splitlines() if row.startswith(_CACHE_INFO + "{")), "")
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    try:
        size, blocks = int(labels["block_size"]), int(labels["num_gpu_blocks"])
    except (KeyError, ValueError):
        return 0, 0
    return size, max(0, blocks - 1)


def _samples(metrics: str, name: str) -> list[float]:
    rows = (row for row in metrics.splitlines() if row.startswith((name + "{", name + " ")))
    return [float(row.rsplit(" ", 1)[1]) for row in rows]


def _chosen(document: Any, model: str) -> dict[str, Any]:
    """The card of `model`, or of the only model that is no adapter of another."""
    try:
        cards = {str(card["id"]): card for card in document["data"]}
    except (KeyError, TypeError) as error:
        raise _no_endpoint("/v1/models") from error
    if model:
        if model not in cards:
            raise EndpointError(f"no model {model!r} is served; there are: {', '.join(cards)}")
        return dict(cards[model])
    bases = [card for card in cards.values() if not card.get("parent")]
    if len(bases) != 1:
        raise EndpointError(f"{len(cards)} models are served; choose one: {', '.join(cards)}")
    return dict(bases[0])


def _version(text: str) -> str:
    try:
        return str(json.loads(text)["version"])
    except (ValueError, KeyError, TypeError):
        return ""


def _tokens(line: str, before: int) -> int:
    """Output tokens so far, after one line of a stream that had `before`."""
    data = line.removeprefix("data: ")
    if data is line or data == "[DONE]":
        return before
    try:
        event = json.loads(data)
        if "error" in event:
            raise RefusedError(f"the endpoint ended a stream: {_said(event)}")
        usage = event.get("usage")
        # An endpoint that does not count along makes one event per token.
        return int(usage["completion_tokens"]) if usage else before + bool(event["choices"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(f"not a stream of completions: {data[:_SAID_CHARS]!r}") from error


def _refusal(status: int, content: bytes, path: str = "") -> EndpointError:
    if status in (401, 403):
        return EndpointError(f"the endpoint wants a key, or another one (status {status})")
    if path:
        return _no_endpoint(path, f" (status {status})")
    try:
        said = _said(json.loads(content))
    except ValueError:
        said = content.decode(errors="replace")[:_SAID_CHARS]
    return RefusedError(f"the endpoint refuses a completion with status {status}: {said}")


def _said(document: Any) -> str:
    """The message of an error in OpenAI's shape, or in vLLM's older one."""
    inner = document.get("error", document) if isinstance(document, dict) else document
    message = inner.get("message", inner) if isinstance(inner, dict) else inner
    return str(message)[:_SAID_CHARS]


def _no_endpoint(path: str, detail: str = "") -> EndpointError:
    return EndpointError(f"not an OpenAI endpoint: {path} gives no list of models{detail}")
