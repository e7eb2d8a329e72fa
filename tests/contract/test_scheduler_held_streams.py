"""Streams whose clients lose their connection or leave, and return with `Last-Event-ID`."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import EVENTS, MODEL, STREAM, Engine, Exchange, answer, engines
from schedulers import Scheduler, running

from foretell.services.scheduler.relay import held

RECORDED = Path(__file__).parents[1] / "data" / "vllm_answers" / "chat-token-ids.sse"
BODY = json.dumps({"model": MODEL, "prompt": "hello", "stream": True})
QUICK = json.dumps({"model": MODEL, "prompt": "quick", "stream": True})
RESUMABLE = {"x-foretell-resumable": "true"}


class Slow:
    """An engine that sends an event per `say`, or all at once if the prompt is "quick"."""

    def __init__(self) -> None:
        self._may = asyncio.Semaphore(0)

    def say(self, events: int) -> None:
        for _ in range(events):
            self._may.release()

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.received.body["prompt"] == "quick":
            await answer(exchange)
            return
        await exchange.head(200, "text/event-stream")
        for event in EVENTS:
            await self._may.acquire()
            await exchange.chunk(event)
        await exchange.chunk(b"")


class Client:
    """One connection of a client, and the events received over it."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.ids: list[str] = []
        self.got = b""
        self._parts = response.aiter_raw()

    async def read(self, events: int) -> "Client":
        """Read until so many events have come."""
        while len(self.ids) < events:
            self._take(await anext(self._parts))
        return self

    async def rest(self) -> "Client":
        """Read until the answer ends."""
        async for part in self._parts:
            self._take(part)
        return self

    def _take(self, part: bytes) -> None:
        for event in part.removeprefix(b":\n\n").split(b"\n\n")[:-1]:
            first, _, rest = event.partition(b"\n")
            assert first.startswith(b"id: ")
            self.ids.append(first[4:].decode())
            self.got += rest + b"\n\n"


@asynccontextmanager
async def asking(
    scheduler: Scheduler, last: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[Client]:
    sent = RESUMABLE | (headers or {}) | ({"last-event-id": last} if last else {})
    async with (
        httpx.AsyncClient(base_url=scheduler.url, timeout=20.0) as own,
        own.stream("POST", "/v1/completions", content=BODY, headers=sent) as response,
    ):
        assert response.status_code == 200, await response.aread()
        assert response.headers["x-foretell-resumable"] == "true"
        yield Client(response)


async def refusal(scheduler: Scheduler, last: str, **headers: str) -> dict[str, Any]:
    sent = RESUMABLE | {"last-event-id": last} | headers
    response = await scheduler.client.post("/v1/completions", content=BODY, headers=sent)
    assert response.status_code == 404
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == "stream_not_held"
    assert error["type"] == "invalid_request_error"
    return error


@pytest.fixture
async def slow() -> Slow:
    return Slow()


@asynccontextmanager
async def place(
    folder: Path, behaviour: Callable[[Exchange], Any], **changes: Any
) -> AsyncIterator[tuple[Scheduler, Engine]]:
    async with (
        engines(behaviour) as (engine,),
        running(folder, [engine], request_timeout_s=600.0, **changes) as scheduler,
    ):
        yield scheduler, engine


@pytest.mark.parametrize("seen", [1, 2, 4])
async def test_the_engine_goes_on_while_the_client_is_away(
    tmp_path: Path, slow: Slow, seen: int
) -> None:
    async with place(tmp_path, slow) as (scheduler, engine):
        slow.say(seen)
        async with asking(scheduler) as client:
            await client.read(seen)
        slow.say(1)
        async with asking(scheduler, client.ids[-1]) as again:
            slow.say(len(EVENTS))
            await again.rest()
        assert client.got + again.got == STREAM
        assert len({*client.ids, *again.ids}) == len(EVENTS)
        assert len(engine.received) == 1
        await scheduler.until_idle()
        assert await scheduler.metric("foretell_requests_total", status="200") == 1


async def test_another_engine_goes_on_while_the_client_is_away(tmp_path: Path) -> None:
    recorded = RECORDED.read_bytes()
    told = [event + b"\n\n" for event in recorded.split(b"\n\n") if event]
    away = asyncio.Event()

    async def dies(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        for event in told[:3]:
            await exchange.chunk(event)
        await away.wait()
        await exchange.hang_up()

    async def good(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        await exchange.chunk(recorded)
        await exchange.chunk(b"")

    async with engines(dies, good) as both, running(tmp_path, both) as scheduler:
        async with asking(scheduler) as client:
            await client.read(3)
        await scheduler.until(lambda s: s["in_progress"] == 1)
        away.set()
        await scheduler.until_metric("foretell_continuations_total", 1)
        async with asking(scheduler, client.ids[-1]) as again:
            await again.rest()
    texts = [
        choice["delta"].get("content") or ""
        for event in (client.got + again.got).split(b"\n\n")
        if event.startswith(b"data: {")
        for choice in json.loads(event[6:])["choices"]
    ]
    assert "".join(texts) == " fobo vobaXXX"
    assert again.got.endswith(b"data: [DONE]\n\n")


async def test_what_an_answer_lacks_that_has_ended_can_be_had_from_any_event(
    tmp_path: Path, slow: Slow
) -> None:
    async with place(tmp_path, slow) as (scheduler, engine):
        slow.say(len(EVENTS))
        async with asking(scheduler) as client:
            await client.rest()
        assert client.got == STREAM
        for number, last in enumerate(client.ids, 1):
            async with asking(scheduler, last) as again:
                await again.rest()
            assert again.got == b"".join(EVENTS[number:])
        assert len(engine.received) == 1


async def test_who_comes_back_is_believed_that_the_former_connection_is_lost(
    tmp_path: Path, slow: Slow
) -> None:
    async with place(tmp_path, slow) as (scheduler, _):
        slow.say(1)
        async with asking(scheduler) as client:
            await client.read(1)
            async with asking(scheduler, client.ids[-1]) as again:
                with pytest.raises(httpx.HTTPError):
                    await client.rest()
                slow.say(len(EVENTS))
                await again.rest()
            assert client.got + again.got == STREAM


async def test_a_stream_that_nobody_comes_back_to_is_given_up(
    tmp_path: Path, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "AWAY_S", 0.05)
    async with place(tmp_path, slow) as (scheduler, engine):
        slow.say(1)
        async with asking(scheduler) as client:
            await client.read(1)
        async with asyncio.timeout(20.0):
            await engine.received[0].gone.wait()
        await scheduler.until_idle()
        await refusal(scheduler, client.ids[-1])
        await scheduler.until_metric("foretell_requests_total", 1, status="499")


async def test_a_client_that_leaves_before_the_first_event_does_not_come_back(
    tmp_path: Path, slow: Slow
) -> None:
    async with place(tmp_path, slow) as (scheduler, engine):
        leaving = asyncio.create_task(
            scheduler.client.post("/v1/completions", content=BODY, headers=RESUMABLE)
        )
        await scheduler.until(lambda s: bool(s["in_progress"] and engine.received))
        leaving.cancel()
        async with asyncio.timeout(20.0):
            await engine.received[0].gone.wait()
        await scheduler.until_idle()


async def test_only_the_same_key_gets_the_stream(tmp_path: Path, slow: Slow) -> None:
    file = tmp_path / "keys.yaml"
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("one", "other")}
    file.write_text(json.dumps({n: {"sha256": d} for n, d in digests.items()}))
    one, other = ({"authorization": f"Bearer {name}"} for name in ("one", "other"))
    async with place(tmp_path, slow, api_keys_file=str(file), headers=one) as (scheduler, _):
        slow.say(1)
        async with asking(scheduler, headers=one) as client:
            await client.read(1)
        await refusal(scheduler, client.ids[-1], **other)
        sent = RESUMABLE | {"last-event-id": client.ids[-1], "authorization": "Bearer no"}
        response = await scheduler.client.post("/v1/completions", content=BODY, headers=sent)
        assert response.status_code == 401
        slow.say(len(EVENTS))
        async with asking(scheduler, client.ids[-1], one) as again:
            await again.rest()
        assert client.got + again.got == STREAM


@pytest.mark.parametrize("wrong", [".", "x", "{}.x", "{}.-1", "{}.9", "{}.1e0", "x{}.1"])
async def test_what_is_not_held_is_said_to_be_so(tmp_path: Path, slow: Slow, wrong: str) -> None:
    async with place(tmp_path, slow) as (scheduler, _):
        slow.say(len(EVENTS))
        async with asking(scheduler) as client:
            await client.rest()
        name = client.ids[0].rpartition(".")[0]
        error = await refusal(scheduler, wrong.format(name))
        assert "without 'Last-Event-ID'" in error["message"]


async def test_ids_are_for_those_who_ask_for_them(tmp_path: Path, slow: Slow) -> None:
    async with place(tmp_path, slow) as (scheduler, _):
        for headers in ({}, {"x-foretell-resumable": "false"}, {"last-event-id": "x.1"}):
            slow.say(len(EVENTS))
            response = await scheduler.client.post("/v1/completions", content=BODY, headers=headers)
            assert response.content == STREAM
            assert "x-foretell-resumable" not in response.headers


async def test_a_replica_holds_so_many_streams(
    tmp_path: Path, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MOST_STREAMS", 1)
    async with place(tmp_path, slow) as (scheduler, _):
        slow.say(1)
        async with asking(scheduler) as first:
            await first.read(1)
            response = await scheduler.client.post(
                "/v1/completions", content=QUICK, headers=RESUMABLE
            )
            assert response.content == STREAM
            slow.say(len(EVENTS))
            await first.rest()
        async with asking(scheduler) as second:  # takes the place of a stream that has ended
            slow.say(len(EVENTS))
            await second.rest()
        await refusal(scheduler, first.ids[0])


async def test_events_are_held_up_to_so_many_bytes(
    tmp_path: Path, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MOST_BYTES", len(b"".join(EVENTS[2:])) + 80)
    async with place(tmp_path, slow) as (scheduler, _):
        slow.say(len(EVENTS))
        async with asking(scheduler) as client:
            await client.rest()
        await refusal(scheduler, client.ids[0])
        async with asking(scheduler, client.ids[2]) as again:
            await again.rest()
        assert again.got == b"".join(EVENTS[3:])
        slow.say(1)
        async with asking(scheduler) as client:
            await client.read(1)
        slow.say(len(EVENTS))  # more than is held, while the client is away
        await scheduler.until_idle()
        await refusal(scheduler, client.ids[0])
