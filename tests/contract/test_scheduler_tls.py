"""TLS towards clients: verification, renewed certificates, and misbehaving clients."""

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import make_certificate
from engines import MODEL, WHOLE, Engine, answer, engines
from openai import AsyncOpenAI
from pydantic import ValidationError
from schedulers import WAIT_S, running

from foretell.config import SchedulerSettings
from foretell.http1.response import Response
from foretell.services.http import server as server_module
from foretell.services.http.connection import STALL_S
from foretell.services.http.exchange import Exchange
from foretell.services.http.server import _SHUTDOWN_S, Listener, Server
from foretell.services.http.tls import Certificate

Files = tuple[str, str]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_certificate(tmp_path_factory.mktemp("old"), "old")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_certificate(tmp_path_factory.mktemp("new"), "new")


def trusting(files: Files) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files[0])


@asynccontextmanager
async def encrypted(folder: Path, engine: Engine, files: Files) -> AsyncIterator[str]:
    """The HTTPS URL of a scheduler with one engine."""
    certificate, key = files
    flags = {"https_certificate": certificate, "https_key": key, "https_listen": "127.0.0.1:0"}
    async with running(folder, [engine], **flags) as scheduler:
        assert (await scheduler.complete()).content == WHOLE, "without TLS all stays as it is"
        yield scheduler.ready["https_url"]


async def common_name(address: tuple[str, int], files: Files) -> str:
    """The common name in the server's certificate, seen by a client that trusts `files`."""
    _, writer = await asyncio.open_connection(*address, ssl=trusting(files))
    shown = writer.get_extra_info("peercert")["subject"]
    writer.close()
    return str(dict(pair for part in shown for pair in part)["commonName"])


async def test_clients_that_trust_the_certificate_are_served(tmp_path: Path, old: Files) -> None:
    async with engines(answer) as (engine,), encrypted(tmp_path, engine, old) as url:
        transport = httpx.AsyncClient(verify=trusting(old), trust_env=False)
        async with (
            transport,
            AsyncOpenAI(
                base_url=f"{url}/v1", api_key="any", http_client=transport, max_retries=0
            ) as sdk,
        ):
            given = await transport.post(
                f"{url}/v1/completions", json={"model": MODEL, "prompt": "hello"}
            )
            assert given.content == WHOLE
            events = [
                event
                async for event in await sdk.completions.create(
                    model=MODEL, prompt="hello", stream=True
                )
            ]
            assert any(choice.finish_reason for each in events for choice in each.choices)
        async with httpx.AsyncClient(trust_env=False) as stranger:
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                await stranger.get(f"{url}/health")
            with pytest.raises(httpx.HTTPError):
                await stranger.get(f"{url.replace('https', 'http')}/health")


async def test_a_head_that_is_refused_is_answered_over_tls_too(tmp_path: Path, old: Files) -> None:
    async with engines(answer) as (engine,), encrypted(tmp_path, engine, old) as url:
        host, port = url.removeprefix("https://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting(old))
        writer.write(b"this is no HTTP\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 501")
        writer.close()


async def test_a_renewed_certificate_is_shown_to_new_clients_without_a_restart(
    tmp_path: Path, old: Files, new: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.services.process.reread.LOOK_EVERY_S", 0.0)
    shown = str(tmp_path / "shown.pem"), str(tmp_path / "shown.key")

    def replace(file: int, source: Files) -> None:
        part = Path(f"{shown[file]}.part")
        shutil.copy(source[file], part)
        part.replace(shown[file])

    for file in (0, 1):
        replace(file, old)
    async with engines(answer) as (engine,), encrypted(tmp_path, engine, shown) as url:
        host, port = url.removeprefix("https://").split(":")
        address = host, int(port)
        async with httpx.AsyncClient(verify=trusting(old), trust_env=False) as client:
            assert (await client.get(f"{url}/health")).status_code == 200
            replace(0, new)
            assert await common_name(address, old) == "old", "the key does not belong to it yet"
            replace(1, new)
            assert await common_name(address, new) == "new"
            with pytest.raises(ssl.SSLCertVerificationError):
                await common_name(address, old)
            assert (await client.get(f"{url}/health")).status_code == 200, "on its connection"
        for path in map(Path, shown):
            path.unlink()
        assert await common_name(address, new) == "new"


@asynccontextmanager
async def answering(
    body: bytes, files: Files
) -> AsyncIterator[tuple[Server, tuple[str, int], asyncio.Event]]:
    """A server that answers everything with `body`, its address, and the event that stops it."""
    ready, stop = asyncio.Event(), asyncio.Event()
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)

    async def page(exchange: Exchange) -> None:
        exchange.respond(Response(200, body))

    server = Server(page)
    listeners = [Listener(sock, Certificate(*files).context)]
    serving = asyncio.create_task(server.run(listeners, stop, on_ready=ready.set, drain_s=WAIT_S))
    await ready.wait()
    yield server, sock.getsockname(), stop
    stop.set()
    await serving


async def test_a_client_that_does_not_read_is_given_up_and_one_that_reads_gets_all(
    old: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _SHUTDOWN_S > STALL_S, "or the event loop would cut slow readers off"
    monkeypatch.setattr("foretell.services.http.server._SWEEP_S", 0.01)
    body = b"x" * (16 << 20)  # more than the kernel buffers
    async with answering(body, old) as (server, address, _):

        async def ask() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*address, ssl=trusting(old))
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            return reader, writer

        async with asyncio.timeout(WAIT_S):
            reader, writer = await ask()
            assert await reader.read() == body
            writer.close()
            monkeypatch.setattr("foretell.services.http.connection.STALL_S", 0.3)
            _, silent = await ask()
            while server.connections:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)
            silent.transport.abort()


async def test_the_buffer_of_a_client_grows_only_after_its_handshake(
    old: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets: list[socket.socket] = []
    accepted = server_module._accepted

    def noted(*args: Any) -> list[socket.socket]:
        sockets.extend(found := accepted(*args))
        return found

    monkeypatch.setattr(server_module, "_accepted", noted)

    def is_locked() -> bool:
        return bool(sockets[0].getsockopt(socket.SOL_SOCKET, server_module._BUFFER_LOCK))

    async with answering(b"here", old) as (_, address, _), asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(*address)
        while not sockets:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
        assert is_locked()
        await writer.start_tls(trusting(old), server_hostname="127.0.0.1")
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200")
        assert not is_locked()
        writer.close()


async def test_a_server_that_ends_serves_those_who_wait_for_a_handshake(old: Files) -> None:
    async with answering(b"here", old) as (_, address, stop):
        late = socket.create_connection(address)
        stop.set()  # the event loop has not run since `late` was connected
        late.setblocking(False)
        reader, writer = await asyncio.open_connection(
            sock=late, ssl=trusting(old), server_hostname="127.0.0.1"
        )
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            assert (await reader.read()).endswith(b"\r\n\r\nhere")
        writer.close()


def test_tls_without_usable_files_is_refused_at_the_start(
    tmp_path: Path, old: Files, new: Files
) -> None:
    for files in ({}, {"https_certificate": old[0]}, {"https_key": old[1]}):
        with pytest.raises(ValidationError, match="https_certificate and https_key"):
            SchedulerSettings(https_listen="127.0.0.1:0", **files)
    for certificate, key in ((old[0], new[1]), (old[0], "/no/file"), (old[1], old[1])):
        with pytest.raises(SystemExit, match="https_certificate, https_key: cannot use"):
            Certificate(certificate, key)
