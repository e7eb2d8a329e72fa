"""Sends requests when they are due, and reads what the schedulers' logs say of them."""

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from foretell.workload import Arrival

_HEADROOM_S = 0.2  # from the moment when sending begins to the first request


class LoadError(Exception):
    """A request was not served as it should."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One request as the client saw it; seconds on its clock."""

    request_id: str
    late_s: float
    """From when it was due until it was sent."""
    e2e_s: float
    """From when it was due to the last byte of its answer."""


@dataclass(frozen=True, slots=True)
class Logged:
    """What a scheduler's log says of a request."""

    placement_s: float
    ttft_s: float
    """From when the scheduler had it, holding included, to the first token."""
    seen: bool
    """False: the first token was in the last snapshot too late, and that of the end stands in."""


async def send(
    arrivals: Sequence[Arrival],
    urls: Sequence[str],
    model: str,
    *,
    prefix: str,
    speedup: float,
    seed: int,
) -> list[Answered]:
    """Every request when it is due (`t_s` divided by `speedup`), at one of the schedulers `urls`.

    Ids get `prefix`. Raises `LoadError` unless every token comes.
    """
    draws = Random(seed)
    bodies = _bodies(arrivals, model)
    begin = time.monotonic() + _HEADROOM_S
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def ask(arrival: Arrival, body: bytes, url: str, due: float) -> Answered:
            late_s = time.monotonic() - due
            request_id = f"{prefix}{arrival.request_id}"
            headers = {"content-type": "application/json", "x-request-id": request_id}
            async with session.post(f"{url}/v1/completions", data=body, headers=headers) as answer:
                text = await answer.read()
            e2e_s = time.monotonic() - due
            if answer.status != 200:
                raise LoadError(f"{request_id}: {answer.status}: {text[:300]!r}")
            if json.loads(text)["usage"]["completion_tokens"] != arrival.output_tokens:
                raise LoadError(f"{request_id}: not {arrival.output_tokens} tokens")
            return Answered(request_id, late_s, e2e_s)

        async with asyncio.TaskGroup() as group:
            tasks = []
            for arrival, body in zip(arrivals, bodies, strict=True):
                due = begin + arrival.t_s / speedup
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                tasks.append(group.create_task(ask(arrival, body, draws.choice(urls), due)))
        return [task.result() for task in tasks]


def _bodies(arrivals: Iterable[Arrival], model: str) -> list[bytes]:
    """Prompts are token ids, so that their lengths are exact, and begin alike nowhere."""
    bodies, first = [], 0
    for arrival in arrivals:
        request = {
            "model": model,
            "prompt": list(range(first, first + arrival.prompt_tokens)),
            "max_tokens": arrival.output_tokens,
            "ignore_eos": True,
            "vllm_xargs": {"foretell_output_tokens": arrival.output_tokens},
        }
        first += arrival.prompt_tokens
        bodies.append(json.dumps(request, separators=(",", ":")).encode())
    return bodies


def read_logs(logs: Iterable[Path], prefix: str) -> dict[str, Logged]:
    """What is logged of the finished requests whose ids begin with `prefix`."""
    found = {}
    for log in logs:
        for line in log.read_text(encoding="utf-8").splitlines():
            entry: dict[str, Any] = json.loads(line)
            if entry["finished"] and entry["request_id"].startswith(prefix):
                seen = entry["ttft_s"] is not None
                ttft_s = entry["ttft_s"] if seen else entry["e2e_s"]
                placement_s = entry["placement_s"]
                found[entry["request_id"]] = Logged(placement_s, placement_s + ttft_s, seen)
    return found
