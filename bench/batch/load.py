"""Online requests in bursts, and a batch beside them: sent directly, or given to the service."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from itertools import count
from random import Random
from types import TracebackType
from typing import Any, Self

import aiohttp

from bench.batch.cluster import Cluster

MODES = ("alone", "unprotected", "protected", "protected, targets", "protected, as alone")
_ONLINE_PROMPT, _ONLINE_OUTPUT = 128, 64
_BATCH_PROMPT, _BATCH_OUTPUT = 256, 128
"""Words of the prompts, and tokens of the answers."""
_BURST_S, _QUIET_S, _QUIET_RATIO = 4.0, 4.0, 0.25
"""A burst, and then a while with so much of its rate; in seconds of the profile."""
_URL = "/v1/completions"
_runs = count(1)
"""Numbers of what sends requests: those of one run begin as those of no other do."""


def body_of(model: str, name: str, words: int, output_tokens: int, **more: Any) -> dict[str, Any]:
    """A request that begins as no other does, so that no cache knows it."""
    prompt = f"{name} " + "word " * words
    lengths = {"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True}
    return {"model": model, "prompt": prompt, **lengths, **more}


class Online:
    """Streams that come when they are due, whatever became of those before."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        cluster: Cluster,
        draws: Random,
        speedup: float,
        rate_per_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`rate_per_s` and all that is measured are in seconds of the profile; all requests get the
        `headers`."""
        self._session, self._cluster, self._headers = session, cluster, headers or {}
        self._draws, self._speedup, self._rate_per_s = draws, speedup, rate_per_s
        self._run = next(_runs)
        self._tasks: set[asyncio.Task[None]] = set()
        self._measuring = False
        self.ttft_s: list[float] = []
        """From when it was due to its first token, of each request that was measured."""
        self.tpot_s: list[float] = []
        """The mean time between its tokens."""

    async def run(self) -> None:
        """Send until cancelled."""
        begin_s = due_s = time.monotonic()
        number = 0
        while True:
            now_s = (due_s - begin_s) * self._speedup
            burst = now_s % (_BURST_S + _QUIET_S) < _BURST_S
            rate = self._rate_per_s * (1.0 if burst else _QUIET_RATIO)
            due_s += self._draws.expovariate(rate) / self._speedup
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            number += 1
            task = asyncio.create_task(self._ask(f"{self._run}-online-{number}", due_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, name: str, due_s: float) -> None:
        measured = self._measuring
        body = body_of(self._cluster.model, name, _ONLINE_PROMPT, _ONLINE_OUTPUT, stream=True)
        first_s = 0.0
        url = f"{self._cluster.url}{_URL}"
        async with self._session.post(url, json=body, headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()
            async for _ in answer.content.iter_any():
                first_s = first_s or time.monotonic()
        if measured:
            self.ttft_s.append((first_s - due_s) * self._speedup)
            took_s = (time.monotonic() - first_s) * self._speedup
            self.tpot_s.append(took_s / (_ONLINE_OUTPUT - 1))

    def begin(self) -> None:
        """Requests that are sent from now on are measured."""
        self._measuring = True

    def end(self) -> None:
        """Requests that are sent from now on are not measured any more."""
        self._measuring = False

    async def finish(self) -> None:
        """Wait for what is on its way."""
        await asyncio.gather(*self._tasks)


class Batch:
    """A batch, from the beginning of its block to the end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    async def tokens(self) -> int:
        """The output tokens of its requests that have ended."""
        raise NotImplementedError


class Idle(Batch):
    """There is none."""

    async def tokens(self) -> int:
        return 0


class Direct(Batch):
    """Its requests are sent as online ones are, always so many at once."""

    def __init__(self, session: aiohttp.ClientSession, cluster: Cluster, concurrency: int) -> None:
        self._session, self._url, self._model = session, cluster.url, cluster.model
        self._concurrency, self._run = concurrency, next(_runs)
        self._senders: list[asyncio.Task[None]] = []
        self._ended = self._sent = 0

    async def __aenter__(self) -> Self:
        self._senders = [asyncio.create_task(self._send()) for _ in range(self._concurrency)]
        return self

    async def _send(self) -> None:
        while True:
            self._sent += 1
            name = f"{self._run}-batch-{self._sent}"
            body = body_of(self._model, name, _BATCH_PROMPT, _BATCH_OUTPUT)
            async with self._session.post(f"{self._url}{_URL}", json=body) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            self._ended += 1

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert not any(sender.done() for sender in self._senders), "a request failed"
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

    async def tokens(self) -> int:
        return self._ended * _BATCH_OUTPUT


async def create(
    session: aiohttp.ClientSession, cluster: Cluster, bodies: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A new batch of these requests."""
    lines = (
        {"custom_id": f"c{number}", "method": "POST", "url": _URL, "body": body}
        for number, body in enumerate(bodies)
    )
    form = aiohttp.FormData({"purpose": "batch"})
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    form.add_field("file", data, filename="input.jsonl")
    async with session.post(f"{cluster.batches_url}/v1/files", data=form) as answer:
        file_id = (await answer.json())["id"]
    asked = {"input_file_id": file_id, "endpoint": _URL, "completion_window": "24h"}
    async with session.post(f"{cluster.batches_url}/v1/batches", json=asked) as answer:
        created: dict[str, Any] = await answer.json()
        return created


async def known(session: aiohttp.ClientSession, cluster: Cluster, batch_id: str) -> dict[str, Any]:
    """A batch as it is now."""
    async with session.get(f"{cluster.batches_url}/v1/batches/{batch_id}") as answer:
        found: dict[str, Any] = await answer.json()
        return found


class Served(Batch):
    """It is given to the batch service, and cancelled at the end."""

    def __init__(self, session: aiohttp.ClientSession, cluster: Cluster, lines: int) -> None:
        self._session, self._cluster, self._lines = session, cluster, lines
        self._run = next(_runs)
        self._id = ""

    async def __aenter__(self) -> Self:
        bodies = [
            body_of(self._cluster.model, f"{self._run}-line-{number}", _BATCH_PROMPT, _BATCH_OUTPUT)
            for number in range(self._lines)
        ]
        self._id = (await create(self._session, self._cluster, bodies))["id"]
        while (await self._now())["status"] == "validating":  # noqa: ASYNC110 - it is far away
            await asyncio.sleep(0.1)
        return self

    async def _now(self) -> dict[str, Any]:
        return await known(self._session, self._cluster, self._id)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        batch = await self._now()
        assert batch["status"] == "in_progress", f"it has ended: {batch}; give it more lines"
        await self._session.post(f"{self._cluster.batches_url}/v1/batches/{self._id}/cancel")

    async def tokens(self) -> int:
        return int((await self._now())["usage"]["output_tokens"])
