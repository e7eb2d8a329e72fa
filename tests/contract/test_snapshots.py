"""The stream of snapshots over real sockets: both its ends, and what may fail."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from foretell import wire
from foretell.engine.publishing import MAX_FOLLOWERS, URGENT_INTERVAL_S
from foretell.engine.snapshot_cache import SnapshotCache
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import StepTimeModel
from foretell.length.distribution import knots
from foretell.length.prefix import chained
from foretell.model import BatchShape, EngineSnapshot, LengthEstimate, RequestSpec
from foretell.services.predictor.metrics import PredictorMetrics
from foretell.services.predictor.publisher import Streams
from foretell.services.predictor.service import PredictorService
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
from foretell.services.scheduler.placing.following import Following
from foretell.tools.harness.cases import Size, make_case
from foretell.v1 import predictor_pb2 as pb
from foretell.wire.published import VERSION

WAIT_S = 20.0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


def snapshot(running: int = 4, sequence: int = 1, *, caching: bool = False) -> EngineSnapshot:
    found = make_case(Size(running, 0), 0, async_scheduling=True).snapshot
    config = replace(found.config, enable_prefix_caching=caching)
    return replace(found, sequence=sequence, instance_id="e", config=config)


def request(request_id: str, **fields: object) -> RequestSpec:
    return RequestSpec(request_id, 100, 0, LengthEstimate(50.0), **fields)  # type: ignore[arg-type]


class Sidecar:
    """The predictor's end: its service, fed by hand, and its stream on a unix socket."""

    def __init__(self, address: str, traffic: Traffic) -> None:
        self.address = address
        self._traffic = traffic
        self.service = PredictorService(
            "e",
            OnlineStepTime(),
            PredictorMetrics(CollectorRegistry()),
            reserve_ttl_s=30.0,
            dispatch_delay_s=0.002,
            prior_output_tokens=100.0,
        )

    async def start(self) -> None:
        self.streams = Streams(self.service, self._traffic)
        where = frames_address(self.address)
        self._server, _ = await serve_frames(self.streams.new, where, self._traffic)

    async def stop(self) -> None:
        self._server.close()
        self.streams.close()
        await self._server.wait_closed()

    def reserved(self) -> int:
        return self.service.predictor.ledger.reserved


@asynccontextmanager
async def sidecar(folder: Path, traffic: Traffic = OPEN) -> AsyncIterator[Sidecar]:
    found = Sidecar(f"unix:{folder}/p", traffic)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


class Replica:
    """The scheduler's end."""

    def __init__(self, address: str, traffic: Traffic = OPEN) -> None:
        self.cache = SnapshotCache(knots)
        self.refused: list[str] = []
        engine = self.cache.follow("e")
        self.following = Following(address, traffic, engine, self.refused.append, lambda _: None)

    def is_fresh(self) -> bool:
        return bool(self.cache.fresh(["e"], asyncio.get_running_loop().time()))

    def reserved(self) -> int:
        return self.cache.load("e").reserved if self.is_fresh() else -1

    def running(self) -> int:
        return self.cache.load("e").running if self.is_fresh() else -1


@asynccontextmanager
async def replica(address: str, traffic: Traffic = OPEN) -> AsyncIterator[Replica]:
    found = Replica(address, traffic)
    found.following.start()
    try:
        yield found
    finally:
        found.following.stop()


async def test_an_idle_engine_is_not_believed_to_be_slow_for_ever(tmp_path: Path) -> None:
    """No snapshot comes, and no request: its follower hears that its slow steps are forgotten."""
    probe = BatchShape(1, 100, 5050, 0, 0)

    def believed_s(one: Replica) -> float:
        predictor = one.cache["e"].predictor
        return StepTimeModel(predictor.model).step_s(probe) if predictor is not None else 0.0

    async with sidecar(tmp_path) as here, replica(here.address) as one:
        here.service.hear(snapshot(running=4))
        for slowdown, steps in ((1.0, 3000), (10.0, 50)):
            for decodes in range(1, steps):
                shape = BatchShape(decodes % 3 == 0, 64, 2080, decodes % 8, 100 * (decodes % 8))
                here.service.step_time.observe(shape, 1e-3 * slowdown)
        here.service.hear(snapshot(running=0, sequence=2))
        await until(lambda: believed_s(one) > 5e-3)
        await until(lambda: believed_s(one) < 2e-3)


async def test_a_follower_hears_of_snapshots_and_is_told_of_the_end(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as here, replica(here.address) as one:
        here.service.hear(snapshot(running=4))
        await until(lambda: one.running() == 4)
        assert one.following.reserve(request("a"))
        assert one.reserved() == 1  # at once
        await until(lambda: here.reserved() == 1)
        here.service.hear(snapshot(running=5, sequence=2))
        await until(lambda: one.running() == 5)
        assert one.reserved() == 1  # and once only
        seen = one.following.complete(request("a"), answered=True)
        assert seen is not None
        assert one.reserved() == 1  # the predictor still tells of it
        assert isinstance(await asyncio.wait_for(seen, WAIT_S), pb.Seen)
        await until(lambda: one.reserved() == 0 and here.reserved() == 0)


async def test_a_follower_hears_why_an_engine_is_not_predicted(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as here, replica(here.address) as one:
        here.service.hear_nothing("vLLM 9.9: not verified")
        await until(lambda: one.following.unpredicted == "vLLM 9.9: not verified")
        here.service.hear(snapshot(running=4))  # its successor is
        await until(lambda: one.running() == 4 and one.following.unpredicted == "")


async def test_followers_hear_of_each_other(tmp_path: Path) -> None:
    async with (
        sidecar(tmp_path) as here,
        replica(here.address) as one,
        replica(here.address) as other,
    ):
        here.service.hear(snapshot())
        await until(lambda: one.is_fresh() and other.is_fresh())
        one.following.reserve(request("a", sequences=3))
        await until(lambda: other.reserved() == 3)
        assert one.reserved() == 3


async def test_prefixes_are_told_as_they_come_and_go(tmp_path: Path) -> None:
    prefix = chained([b"a", b"b"])
    asked = request("x", prefix=prefix, prefix_chunk_tokens=40.0)

    def cached(one: Replica) -> int:
        (found,) = one.cache.predict(
            ["e"],
            asked,
            asyncio.get_running_loop().time(),
            announced_only=True,
            externality=False,
            with_quantiles=False,
        )
        return found.cached_tokens

    async with sidecar(tmp_path) as here:
        here.service.hear(snapshot(caching=True))
        here.service.reserve(request("first", prefix=prefix[:1], prefix_chunk_tokens=40.0))
        async with replica(here.address) as one:
            await until(lambda: one.is_fresh() and cached(one) == 32)  # what was there before
            here.service.reserve(request("second", prefix=prefix, prefix_chunk_tokens=40.0))
            here.service.changed()
            await until(lambda: cached(one) == 80)
            # Another run of the engine begins with an empty cache.
            again = replace(snapshot(caching=True, sequence=1), engine_run_id="another")
            here.service.hear(again)
            await until(lambda: cached(one) == 0)


async def test_a_predictor_that_comes_back_is_told_what_is_on_its_way(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as here, replica(here.address) as one:
        here.service.hear(snapshot())
        await until(one.is_fresh)
        one.following.reserve(request("a"))
        one.following.reserve(request("b"))
        waiting = one.following.complete(request("b"), answered=True)
        assert waiting is not None
        await here.stop()
        assert await asyncio.wait_for(waiting, WAIT_S) in (None, pb.Seen())
        assert not one.following.reserve(request("c"))  # so it has to be called, if it can
        assert one.following.complete(request("nobody"), answered=True) is None
        assert one.running() == 4  # believed for as long as it is not stale
        fresh = Sidecar(here.address, OPEN)
        await fresh.start()
        fresh.service.hear(snapshot(running=2))
        await until(lambda: one.running() == 2)
        await until(lambda: fresh.reserved() == 2)
        assert one.reserved() == 2
        await fresh.stop()
        await here.start()


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
    """A follower by hand."""

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
        await until(one.is_fresh)  # others do not notice


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
    """A predictor's end that sends whatever it is told to."""

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
            for number in range(10):  # whatever the time since the last snapshot
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
    with socket.socket(socket.AF_UNIX) as hung:  # takes connections and never reads
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
            assert not one.following.is_open  # so it is called, and followed again once it reads
            await until(lambda: followed(2))
        for each in streams:
            each.close()
