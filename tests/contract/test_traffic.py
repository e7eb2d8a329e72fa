"""Calls between hosts: refused without the shared secret, and encrypted where configured."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from certificates import make_certificate
from pydantic import SecretStr

from foretell.config import TaggerSettings
from foretell.services.process import calls
from foretell.services.process.frames import FrameStream, open_frames, serve_frames
from foretell.services.process.traffic import OPEN, Traffic, is_loopback
from foretell.services.tagger.server import serve
from foretell.v1 import tagger_pb2, tagger_pb2_grpc

SECRET = "s3cret"


@asynccontextmanager
async def tagger(folder: Path, **settings: object) -> AsyncIterator[str]:
    """The address of a real tagger on TCP."""
    ready, stop = folder / "ready", asyncio.Event()
    wanted = TaggerSettings(model="none", ready_file=str(ready), **settings)  # type: ignore[arg-type]
    task = asyncio.create_task(serve(wanted, None, stop))
    async with asyncio.timeout(20):
        while not ready.exists() and not task.done():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    if task.done():
        task.result()
    try:
        yield json.loads(ready.read_text())["address"]
    finally:
        stop.set()
        await task


async def tag(address: str, traffic: Traffic) -> tagger_pb2.LengthEstimate:
    async with calls.channel(traffic, address) as channel:
        stub = tagger_pb2_grpc.TaggerStub(channel)
        return await stub.Tag(tagger_pb2.TagRequest(prompt="hello", model_name="m"), timeout=10)


@pytest.mark.parametrize("listen", ["", "unix:{folder}/tagger.sock"])
async def test_a_call_without_the_secret_is_refused(tmp_path: Path, listen: str) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    where = listen.format(folder=tmp_path)
    async with tagger(tmp_path, secret_file=str(file), listen=where) as address:
        for traffic in (OPEN, Traffic("wrong"), Traffic("s3cre")):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await tag(address, traffic)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "the shared secret is missing or wrong" in str(refused.value.details())
        assert (await tag(address, Traffic(SECRET))).expected_tokens > 0


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.1", "::", "gpu-a"])
async def test_an_address_that_others_reach_needs_a_secret(address: str) -> None:
    with pytest.raises(SystemExit, match=r"other hosts can reach .*: give a shared secret"):
        await serve(TaggerSettings(model="none", host=address), None, asyncio.Event())


def test_what_only_this_host_reaches() -> None:
    assert all(map(is_loopback, ("127.0.0.1:5", "127.8.0.1:5", "[::1]:5", "localhost:5")))
    assert not any(map(is_loopback, ("0.0.0.0:5", "[::]:5", "10.0.0.1:5", "localhost.evil.org:5")))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_certificates_on_both_sides_replace_the_secret(
    tmp_path: Path, certificate: tuple[str, str]
) -> None:
    path, key = certificate
    files = {"tls_certificate": path, "tls_key": key, "tls_authority": path}
    ours = Traffic.of(SimpleNamespace(secret=SecretStr(""), **files))  # type: ignore[arg-type]
    async with tagger(tmp_path, host="0.0.0.0", **files) as address:
        reached = address.replace("0.0.0.0", "127.0.0.1")
        assert (await tag(reached, ours)).expected_tokens > 0
        for stranger in (OPEN, Traffic(authority=ours.authority)):
            with pytest.raises(grpc.aio.AioRpcError):
                await tag(reached, stranger)


class _End(FrameStream):
    """One end of a stream of frames, which records the frames it receives."""

    heard: list[bytes]

    def received(self, payload: bytes) -> None:
        self.heard.append(payload)


async def test_frames_are_encrypted_for_those_with_certificates_only(
    certificate: tuple[str, str],
) -> None:
    _End.heard = []
    path, key = certificate
    files = {"tls_certificate": path, "tls_key": key, "tls_authority": path}
    ours = Traffic.of(SimpleNamespace(secret=SecretStr(""), **files))  # type: ignore[arg-type]
    server, address = await serve_frames(_End, "0.0.0.0:0", ours)
    reached = address.replace("0.0.0.0", "127.0.0.1")
    without_key = {"tls_certificate": "", "tls_key": "", "tls_authority": path}
    unknown = Traffic.of(SimpleNamespace(secret=SecretStr(""), **without_key))  # type: ignore[arg-type]
    streams = []
    for traffic, word in ((OPEN, b"open"), (unknown, b"unknown"), (ours, b"ours")):
        with suppress(OSError):
            streams.append(await open_frames(_End, reached, traffic))
            streams[-1].send(word)
    async with asyncio.timeout(20):
        while not _End.heard:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
    assert _End.heard == [b"ours"]
    for stream in streams:
        stream.close()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0.1)  # lets TLS transports close


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:0"])
async def test_frames_that_others_could_reach_without_proof_are_refused(address: str) -> None:
    with pytest.raises(SystemExit, match="other hosts can reach"):
        await serve_frames(_End, address, OPEN)


def test_a_key_without_its_certificate_is_refused(certificate: tuple[str, str]) -> None:
    with pytest.raises(SystemExit, match="must be given together"):
        Traffic.of(TaggerSettings(tls_key=certificate[1]))
    with pytest.raises(SystemExit, match="cannot read /no/file"):
        Traffic.of(TaggerSettings(tls_authority="/no/file"))


def test_a_secret_file_that_is_missing_or_empty_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, message in (("none", "cannot read"), ("empty", "is empty")):
        done = subprocess.run(
            [sys.executable, "-m", "foretell.services.tagger", f"--secret-file={tmp_path / name}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr
