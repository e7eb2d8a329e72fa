"""What a snapshot stream refuses, and the limits of its costs."""

import asyncio
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
from sidecars import WAIT_S, replica, request, sidecar, snapshot, until

from foretell import wire
from foretell.engine.publishing import MAX_FOLLOWERS, URGENT_INTERVAL_S
from foretell.services.process import runtime
from foretell.services.process.frames import (
    FRAMES_VERSION,
    HELLO_BYTES,
    FrameStream,
    frames_address,
    open_frames,
    serve_frames,
)
from foretell.services.process.traffic import OPEN, Traffic
from foretell.v1 import predictor_pb2 as pb
from foretell.wire.published import VERSION


async def test_the_secret_is_demanded(tmp_path: Path) -> None:
    async with sidecar(tmp_path, Traffic("secret")) as here:
        here.service.hear(snapshot())
        async with (
            replica(here.address, Traffic("wrong")) as wrong,
            replica(here.address, Traffic("secret")) as right,
        ):
            await until(right.is_fresh)
            assert not wrong.is_fresh()


class _Client(FrameStream):
    """A follower that records frames."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []
        self.over = asyncio.Event()

    def received(self, payload: bytes) -> None:
        self.frames.append(payload)

    def ended(self) -> None:
        self.over.set()


HELLO = pb.Hello(version=FRAMES_VERSION).SerializeToString()
NO_PROMPT = pb.Notice(reserved=pb.RequestSpec(request_id="x")).SerializeToString()


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xff\xff"],
        [pb.Hello(version=FRAMES_VERSION + 1).SerializeToString()],
        [b"x" * (HELLO_BYTES + 1)],
        [HELLO, b"\xff\xff"],
        [HELLO, NO_PROMPT],
        [HELLO, b"x" * (2 << 20)],
    ],
    ids=["garbage", "version", "large hello", "garbage later", "no prompt", "large notice"],
)
async def test_a_predictor_ends_streams_that_make_no_sense(
    tmp_path: Path, frames: list[bytes]
) -> None:
    async with sidecar(tmp_path) as here, replica(here.address) as one:
        here.service.hear(snapshot())
        client = await open_frames(_Client, frames_address(here.address), OPEN)
        assert isinstance(client, _Client)
        for frame in frames:
            client.send(frame)
        await asyncio.wait_for(client.over.wait(), WAIT_S)
        await until(one.is_fresh)  # other followers are not affected


async def test_followers_are_bounded(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as here:
        clients = []
        for _ in range(MAX_FOLLOWERS + 1):
            client = await open_frames(_Client, frames_address(here.address), OPEN)
            assert isinstance(client, _Client)
            client.send(HELLO)
            clients.append(client)
        await until(lambda: any(client.over.is_set() for client in clients))
        for client in clients:
            client.close()


class _Liar(FrameStream):
    """A predictor's end that answers with the payloads of a test."""

    payloads: list[bytes]

    def received(self, payload: bytes) -> None:
        for each in self.payloads:
            self.send(each)


async def test_messages_that_are_no_snapshots_are_refused_and_counted(tmp_path: Path) -> None:
    now = time.time()
    seen = snapshot()
    told = pb.Snapshot(version=VERSION + 2, config=wire.config_to_proto(seen.config))
    _Liar.payloads = [
        b"\xff\xff\xff",
        pb.Published(sent_unix_s=float("nan")).SerializeToString(),
        pb.Published(sent_unix_s=now, heard_unix_s=now, silent_s=-1.0).SerializeToString(),
        pb.Published(sent_unix_s=now, heard_unix_s=now, snapshot=told).SerializeToString(),
    ]
    address = f"unix:{tmp_path}/p"
    server, _ = await serve_frames(_Liar, frames_address(address), OPEN)
    async with replica(address) as one:
        await until(lambda: len(one.refused) >= 4)
        assert one.refused[:4] == ["bytes", "time", "time", "version"]
        assert not one.is_fresh()
    server.close()


async def test_a_follower_that_does_not_read_costs_no_memory(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as here:
        client = await open_frames(_Client, frames_address(here.address), OPEN)
        assert isinstance(client, _Client)
        assert client._transport is not None
        client.send(HELLO)
        await until(lambda: here.streams.publisher.followers)
        (follower,) = here.streams.publisher.followers
        client._transport.pause_reading()  # type: ignore[attr-defined]
        for sequence in range(1, 2000):
            here.service.hear(snapshot(running=200, sequence=sequence))
            here.streams.publisher._publish()
            if follower.congested:
                break
            await asyncio.sleep(0)
        assert follower.congested
        assert follower._transport is not None
        held = follower._transport.get_write_buffer_size()
        for sequence in range(2000, 2020):
            here.service.hear(snapshot(running=200, sequence=sequence))
            here.streams.publisher._publish()
        assert follower._transport.get_write_buffer_size() == held
        client._transport.resume_reading()  # type: ignore[attr-defined]
        await until(lambda: not follower.congested)
        client.close()


def test_notices_of_several_followers_on_the_loop_that_services_run_on(tmp_path: Path) -> None:
    errors: list[object] = []

    async def notify_in_pairs() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        async with (
            sidecar(tmp_path) as here,
            replica(here.address) as one,
            replica(here.address) as other,
        ):
            here.service.hear(snapshot(running=4))
            await until(lambda: one.running() == other.running() == 4)
            for number in range(10):  # at different times since the last snapshot
                await asyncio.sleep(1.3 * URGENT_INTERVAL_S)
                one.following.reserve(request(f"{number}-a"))
                one.following.reserve(request(f"{number}-b"))
            await until(lambda: here.reserved() == other.reserved() == 20)

    with asyncio.Runner(loop_factory=runtime.loop_factory()) as runner:
        runner.run(notify_in_pairs())
    assert not errors


async def test_notices_to_a_predictor_that_hangs_cost_no_memory(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/p"
    prefix = tuple(range(2000))
    with socket.socket(socket.AF_UNIX) as hung:  # accepts connections and never reads
        hung.bind(frames_address(address).removeprefix("unix:"))
        hung.listen()
        hung.setblocking(False)
        streams: list[socket.socket] = []

        def followed(times: int) -> bool:
            with suppress(BlockingIOError):
                streams.append(hung.accept()[0])
            return len(streams) >= times

        async with replica(address) as one:
            await until(lambda: one.following.is_open)
            told = 0
            while one.following.reserve(
                request(f"r{told}", prefix=prefix, prefix_chunk_tokens=1.0)
            ):
                told += 1
                assert told < 1000, "everything was kept for a predictor that does not read"
                await asyncio.sleep(0)
            assert not one.following.is_open  # the stream is given up, and opened again
            await until(lambda: followed(2))
        for each in streams:
            each.close()
