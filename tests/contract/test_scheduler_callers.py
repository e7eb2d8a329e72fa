"""Callers: what they may take and see of each other, and what they may send from a browser."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
from engines import MODEL, WHOLE, Engine, answer, engines
from schedulers import WAIT_S, Scheduler, running, until

from foretell.openai.errors import ApiError
from foretell.services.batch.store import BatchStore
from foretell.services.http.exchange import declared_bytes
from foretell.tenants.in_progress import InProgress

LIMITS = "foretell.services.http.exchange"


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with engines(answer) as made:
        yield made[0]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_places_are_left_to_others() -> None:
    for share, limit, most in ((4, 50, 40), (1, 64, 32), (4, 2, 2), (1, 1, 1)):
        places = InProgress(limit, share=share)
        held = [places.place("greedy") for _ in range(most)]
        for place in held:
            place.__enter__()
        with pytest.raises(ApiError) as refused:
            places.place("greedy").__enter__()
        assert (refused.value.status, places.of("greedy")) == (429, most)
        if most < limit:
            with places.place("other"):
                assert places.now == most + 1
        for place in held:
            place.__exit__(None, None, None)
        assert (places.now, places.of("greedy")) == (0, 0)


def test_numbers_in_headers_may_be_as_long_as_they_like() -> None:
    lengths = ("35", "0035", "0" * 5000, "9" * 5000, "", "x", "\xb2", "-1")
    assert [declared_bytes(each) for each in lengths] == [35, 35, 0, 10**19 - 1, 0, 0, 0, 0]


def test_without_keys_all_places_are_for_who_comes() -> None:
    places = InProgress(3)
    with places.place(), places.place(), places.place():
        assert places.now == 3


async def dripped(scheduler: Scheduler, path: str, pause_s: float) -> bytes:
    """The status line that a client gets while it sends an endless body byte by byte."""
    reader, writer = await asyncio.open_connection(scheduler.host, scheduler.port)
    writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n".encode())
    try:
        async with asyncio.timeout(WAIT_S):
            while not reader.at_eof():
                writer.write(b" ")
                try:
                    async with asyncio.timeout(pause_s):
                        return await reader.readuntil(b"\r\n")
                except TimeoutError:
                    pass
            return b""
    finally:
        writer.close()


async def test_a_body_that_comes_too_slowly_is_given_up_in_time(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{LIMITS}.BODY_PATIENCE_S", 0.3)
    async with running(tmp_path, [engine], batches="127.0.0.1:1") as scheduler:
        told = await dripped(scheduler, "/v1/completions", 0.02)
        assert told.startswith(b"HTTP/1.1 408")
        monkeypatch.setattr(f"{LIMITS}.LEAST_BODY_BYTES_PER_S", 20)  # half the rate of this client
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await dripped(scheduler, "/v1/completions", 0.02)
        await scheduler.until_idle()


async def test_a_list_of_keys_is_read_again_and_that_is_logged(
    tmp_path: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "keys"
    file.write_text("first\nsecond\n")
    async with running(
        tmp_path, [engine], api_keys_file=str(file), headers=bearer("second")
    ) as scheduler:
        assert (await scheduler.complete(headers=bearer("first"))).content == WHOLE
        file.write_text("second\n")
        await until(lambda: "API keys read again" in caplog.text)
        assert (await scheduler.complete(headers=bearer("first"))).status_code == 401
        file.write_text("")  # without keys, all callers would be let in
        await until(lambda: "not taken in" in caplog.text)
        assert (await scheduler.complete(headers=bearer("first"))).status_code == 401
        named = {"a": {"sha256": sha256(b"third").hexdigest()}}
        file.write_text(json.dumps(named))
        caplog.clear()
        await until(lambda: "read again" in caplog.text)
        assert (await scheduler.complete(headers=bearer("second"))).status_code == 401
        assert (await scheduler.complete(headers=bearer("third"))).content == WHOLE
        assert "second" not in caplog.text


async def test_only_admins_are_told_where_engines_are(tmp_path: Path, engine: Engine) -> None:
    file = tmp_path / "keys.yaml"
    keys = {
        "boss": {"sha256": sha256(b"boss").hexdigest(), "admin": True},
        "team": {"sha256": sha256(b"team").hexdigest(), "requests_per_min": 60, "concurrency": 3},
    }
    file.write_text(json.dumps(keys))
    async with running(
        tmp_path, [engine], api_keys_file=str(file), headers=bearer("boss")
    ) as scheduler:
        assert (await scheduler.status())["instances"][0]["url"] == engine.url
        await scheduler.complete(headers=bearer("team"))
        told = await scheduler.client.get("/status", headers=bearer("team"))
        assert str(engine.port) not in told.text
        assert told.json()["tenant"] == "team"
        assert told.json()["limits"]["requests_per_min"] == 60
        assert told.json()["usage"] == {"in_progress": 0, "requests_left": 59}
    async with running(tmp_path, [engine], api_keys="one,two", headers=bearer("one")) as scheduler:
        assert "url" not in (await scheduler.status())["instances"][0]


async def test_pages_of_origins_that_are_listed_may_call(tmp_path: Path, engine: Engine) -> None:
    origin, stranger = {"origin": "https://chat.example"}, {"origin": "https://other.example"}
    wanted = {"access-control-request-method": "POST"}
    wanted |= {"access-control-request-headers": "authorization,content-type"}
    keys = {"api_keys": "key", "headers": bearer("key")}
    async with running(
        tmp_path, [engine], cors_origins=["https://chat.example"], **keys
    ) as scheduler:
        ask = scheduler.client.options
        told = await ask("/v1/chat/completions", headers={**origin, **wanted, "authorization": ""})
        assert (told.status_code, told.content) == (204, b"")
        assert told.headers["access-control-allow-origin"] == "https://chat.example"
        assert told.headers["access-control-allow-methods"] == "POST, OPTIONS"
        assert told.headers["access-control-allow-headers"] == "authorization,content-type"
        assert told.headers["vary"] == "origin"
        refused = await ask("/v1/chat/completions", headers={**stranger, **wanted})
        assert not [name for name in refused.headers if name.startswith("access-control")]
        for headers in (origin, {**origin, "authorization": "Bearer wrong"}):
            answered = await scheduler.complete(headers=headers)
            assert answered.headers["access-control-allow-origin"] == "https://chat.example"
        assert "access-control-allow-origin" not in (await scheduler.complete()).headers
        assert (await ask("/health")).headers["allow"] == "GET, HEAD, OPTIONS"
        assert (await ask("/nowhere")).status_code == 404
    async with running(tmp_path, [engine], cors_origins=["*"]) as scheduler:
        answered = await scheduler.complete(headers=stranger)
        assert answered.headers["access-control-allow-origin"] == "*"


def test_the_folder_of_batches_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "batches"
    store = BatchStore(folder)
    try:
        assert (folder.parent.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o700,) * 2
        for each in folder.rglob("*"):
            assert each.stat().st_mode & 0o077 == 0, each
        assert list(folder.glob("*.sqlite"))
    finally:
        store.close()


async def test_a_model_is_known_from_answers_that_have_an_end(
    tmp_path: Path, engine: Engine
) -> None:
    """Probes keep only a bounded part of an engine's answer."""
    many = [{"id": MODEL, "owned_by": "vllm"}, {"id": "x" * (5 << 20)}]
    engine.models = {"object": "list", "data": many}
    async with running(tmp_path, [engine], all_up=False) as scheduler:
        await until(lambda: engine.probes >= 3)
        assert not (await scheduler.instance("engine-0"))["healthy"]
        engine.models = {"object": "list", "data": many[:1]}
        await scheduler.until(lambda status: status["instances"][0]["healthy"])
