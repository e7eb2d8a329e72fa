"""The endpoint picker's server: which clients it accepts, and how its connections end."""

import asyncio
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from certificates import make_certificate
from engines import answer, engines
from envoy_messages import asked, endpoint_of
from pickers import PROMPT, picker, process
from schedulers import running

from foretell.config import SchedulerSettings
from foretell.services.process.folders import free_ports
from foretell.services.scheduler.envoy.server import Picker


async def test_health_services(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (scheduler, channel):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")

        async def serving(service: str) -> bool:
            encoded = service.encode()
            return await check(b"\n%c%b" % (len(encoded), encoded)) == b"\x08\x01"

        own = "envoy.service.ext_proc.v3.ExternalProcessor"
        assert all([await serving(each) for each in ("liveness", "readiness", own)])
        assert await check(b"") == b"\x08\x01"
        await engine.stop()
        await scheduler.until(lambda s: not s["instances"][0]["healthy"])
        assert [await serving(each) for each in ("liveness", "readiness", own)] == [1, 0, 1]
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await serving("other")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await channel.unary_unary("/no/Method")(b"")
        assert missing.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_whom_other_hosts_can_reach_must_be_able_to_tell_them_apart() -> None:
    shared = SimpleNamespace(pool=None, max_body_bytes=1)
    app: Any = SimpleNamespace(shared=shared, draining=False)
    for authorization in ({"authorization": "Bearer k"}, {}):
        picker = Picker(app, authorization)
        for address in ("0.0.0.0:0", "[::]:0"):
            with pytest.raises(SystemExit, match="shared secret"):
                async with picker.serving(address, SchedulerSettings()):
                    pass
        async with picker.serving("0.0.0.0:0", SchedulerSettings(secret="s")):
            pass
        async with picker.serving("127.0.0.1:0", SchedulerSettings()):
            pass


async def test_with_a_secret_only_who_knows_it_is_answered(tmp_path: Path) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    async with (
        engines(answer) as (engine,),
        running(tmp_path, [engine], picker=f"0.0.0.0:{port}", engine_api_key="k", secret="s"),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call = process(channel)
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("encrypted", [False, True])
async def test_where_the_network_is_trusted_gateways_prove_nothing(
    tmp_path: Path, encrypted: bool
) -> None:
    """Kubernetes gateways can present neither a secret nor a certificate."""
    (port,) = free_ports("127.0.0.1", 1)
    address = f"127.0.0.1:{port}"
    changes: dict[str, Any] = {}
    channel = grpc.aio.insecure_channel(address)
    if encrypted:
        path, key = make_certificate(tmp_path)
        changes = {"tls_certificate": path, "tls_key": key, "tls_authority": path}
        trusted = grpc.ssl_channel_credentials((tmp_path / "foretell.pem").read_bytes())
        channel = grpc.aio.secure_channel(address, trusted)
    guarded = {"engine_api_key": "k", "secret": "s", "picker_proof": "network"}
    async with (
        engines(answer) as (engine,),
        running(tmp_path, [engine], picker=f"0.0.0.0:{port}", **guarded, **changes),
        channel,
    ):
        call = process(channel)
        for message in asked(PROMPT):
            await call.write(message)
        assert endpoint_of(await call.read()) == f"127.0.0.1:{engine.port}"
        call.cancel()


async def test_its_connections_have_ended_once_it_has(tmp_path: Path) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    path, key = make_certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "foretell.pem"))
    changes = {"tls_certificate": path, "tls_key": key, "picker": f"127.0.0.1:{port}"}

    def connect() -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        return trusted.wrap_socket(plain, server_hostname="127.0.0.1")

    async with engines(answer) as (engine,):
        async with running(tmp_path, [engine], **changes):
            client = await asyncio.to_thread(connect)
            await asyncio.to_thread(client.recv, 1)  # this client never answers the closing
        with socket.socket(fileno=client.detach()) as plain:  # the server's event loop runs no more
            plain.settimeout(10)
            while plain.recv(4096):
                pass


async def test_bytes_that_are_no_http2_end_the_connection(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (_, channel):
        for noise in (
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\x40\1" + b"\xff" * 16_391,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\4\0\0\0\0\0\7abcd",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\4\1\4\0\0\0\1\xff\xff\xff\xff",
        ):
            reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/picker.sock")
            writer.write(noise)
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
        call = process(channel)  # other calls are not disturbed
        for message in asked(PROMPT):
            await call.write(message)
        assert endpoint_of(await call.read())
        call.cancel()


async def test_a_gateway_may_leave_each_call_once_it_is_answered(tmp_path: Path) -> None:
    """Envoy cancels calls that way; here more than one connection's credit would cover."""
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (scheduler, channel):

        async def ask(calls: int) -> None:
            for _ in range(calls):
                call = process(channel)
                for message in asked(PROMPT):
                    await call.write(message)
                assert endpoint_of(await call.read()) == f"127.0.0.1:{engine.port}"
                call.cancel()

        await asyncio.gather(*(ask(100) for _ in range(16)))
        await scheduler.until_idle()
