"""Sends streams of chat completions when they are due, and measures them as a client."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.paced.requests import MAX_TOKENS, WORDS, Ask, Chain, Message
from foretell.cosched.deadlines import TPOT_FIELD, TTFT_FIELD
from foretell.tools.check.engine_args import LENGTH_KEY


class LoadError(Exception):
    """A request was not served correctly."""


_HEADROOM_S = 0.2  # from the start of sending to the first request


@dataclass(frozen=True, slots=True)
class Answered:
    """One request as the client saw it; seconds count from when it was due."""

    ask: Ask
    ttft_s: float
    e2e_s: float
    text: str = ""

    @property
    def tpot_s(self) -> float:
        """Mean time between tokens."""
        return (self.e2e_s - self.ttft_s) / max(1, self.ask.turn.output_tokens - 1)

    @property
    def within(self) -> bool:
        """Whether it met its targets."""
        pairs = zip((self.ttft_s, self.tpot_s), self.ask.targets_s, strict=True)
        return all(not target or actual <= target for actual, target in pairs)


async def send(
    chains: Sequence[Chain],
    url: str,
    model: str,
    run: str,
    *,
    hinted: bool = False,
    tell_engine: bool = False,
    words: Sequence[int] = (),
) -> list[Answered]:
    """Send all requests to one scheduler; returns them in the order of their ids.

    Ids get the prefix `run-`. `hinted`: requests state the lengths of their answers. `tell_engine`:
    `url` is an engine, which gets the targets as a scheduler would send them. `words`: the only
    tokens in answers, so that later turns repeat the same tokens; other text of a random model
    would be tokenized differently.

    Prompts of different runs begin differently, so that none is cached from another run.
    Raises `LoadError` unless every answer has its length.
    """
    begin_s = time.monotonic() + _HEADROOM_S
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        url, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:

        async def follow(chain: Chain) -> list[Answered]:
            answers: list[Answered] = []
            due_s = begin_s
            for ask in chain:
                due_s += ask.after_s
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                body = _body(ask, model, run, tell_engine)
                if hinted:
                    body |= {"max_tokens": ask.turn.output_tokens, "ignore_eos": True}
                if words:
                    body["allowed_token_ids"] = list(words)
                    _repeat(body["messages"], answers)
                answers.append(await _ask(session, ask, body, run, due_s))
                due_s += answers[-1].e2e_s
            return answers

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(follow(chain)) for chain in chains]
    return [answer for task in tasks for answer in task.result()]


async def _ask(
    session: aiohttp.ClientSession, ask: Ask, body: dict[str, Any], run: str, due_s: float
) -> Answered:
    first_s, received = 0.0, b""
    async with session.post(
        "/v1/chat/completions", json=body, headers=_headers(ask, run)
    ) as answer:
        async for data in answer.content.iter_any():
            first_s = first_s or time.monotonic()
            received += data
    ended_s = time.monotonic()
    lines = [line.removeprefix(b"data: ") for line in received.splitlines() if line]
    usage = [line for line in lines if b'"completion_tokens":' in line]
    if answer.status != 200 or not usage:
        raise LoadError(f"{run}-{ask.request_id}: {answer.status}: {received[-300:]!r}")
    tokens = json.loads(usage[-1])["usage"]["completion_tokens"]
    if tokens != ask.turn.output_tokens:
        raise LoadError(f"{run}-{ask.request_id}: {tokens} of {ask.turn.output_tokens} tokens")
    return Answered(ask, first_s - due_s, ended_s - due_s, _text(lines))


def _text(lines: Sequence[bytes]) -> str:
    choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def _repeat(messages: list[Message], answers: Sequence[Answered]) -> None:
    """Replace the file's answers by the actual ones."""
    earlier = [message for message in messages if message["role"] == "assistant"]
    for message, answer in zip(earlier, answers, strict=True):
        message["content"] = answer.text


async def single_tokens(url: str, model: str) -> list[int]:
    """The ids of those `WORDS` that are, after a space, one token of the engine at `url`."""
    found: list[int] = []
    async with aiohttp.ClientSession(url) as session:
        for word in WORDS:
            body = {"model": model, "prompt": f" {word}", "add_special_tokens": False}
            async with session.post("/tokenize", json=body) as answer:
                tokens = (await answer.json())["tokens"]
            found += tokens if len(tokens) == 1 else []
    return found


def _body(ask: Ask, model: str, run: str, tell_engine: bool) -> dict[str, Any]:
    names, targets_s = (TTFT_FIELD, TPOT_FIELD), ask.targets_s if tell_engine else (0.0, 0.0)
    targets = {name: 1e3 * own_s for name, own_s in zip(names, targets_s, strict=True) if own_s}
    return {
        "model": model,
        "messages": [
            {"role": "system", "content": f"Session {run}."},
            *(dict(message) for message in ask.turn.messages),
        ],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "vllm_xargs": {LENGTH_KEY: ask.turn.output_tokens, **targets},
    }


def _headers(ask: Ask, run: str) -> dict[str, str]:
    names = ("x-foretell-ttft-target-ms", "x-foretell-tpot-target-ms")
    targets = zip(names, ask.targets_s, strict=True)
    return {
        "x-request-id": f"{run}-{ask.request_id}",
        **{name: f"{1e3 * target_s:.0f}" for name, target_s in targets if target_s},
    }
