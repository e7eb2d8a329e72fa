"""The predictor over real sockets: snapshots in shared memory, and in its stream."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from foretell import wire
from foretell.config import PredictorSettings
from foretell.config.instances import InstanceConfig
from foretell.latency.linear import LinearStepTime
from foretell.latency.tables import profile_step_time
from foretell.model import (
    BatchShape,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    Load,
    Prediction,
    RequestSpec,
    RequestState,
    Slo,
    Step,
)
from foretell.provision import InstanceFacts, InstancePhase
from foretell.provision.rollout import Coming, EngineKind, EnginePlace, share_within
from foretell.services.backend.publisher import SnapshotPublisher
from foretell.services.predictor.__main__ import serve
from foretell.services.process.memory_log import LogWriter, path_of
from foretell.services.process.traffic import OPEN
from foretell.services.provisioner.fleet import FleetView
from foretell.services.provisioner.gather import Gatherer
from foretell.tools.follower import Follower
from foretell.tools.profiles.calibrated import calibrated_profile
from foretell.tools.profiles.imports import ProfileError
from foretell.v1 import predictor_pb2 as pb
from foretell.v1.snapshot_pb2 import EngineSnapshot as EngineSnapshotMessage

TRUTH = LinearStepTime((0.02, 1e-4, 0.0, 0.0, 1e-4, 0.0))
CONFIG = EngineConfig("m", 16, 1000, 8, 512, 1024, engine_version="test")


def snapshot(sequence: int, **changes: object) -> EngineSnapshot:
    now = time.time()
    base = EngineSnapshot(
        "e0", "run", sequence, now, now, CONFIG, CONFIG.total_blocks, (), (), (), ()
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def running(request_id: str, output: int = 1, predicted: float = 100.0) -> RequestState:
    return RequestState(
        request_id=f"chatcmpl-{request_id}",
        foretell_id=request_id,
        prompt_tokens=32,
        output_tokens=output,
        computed_tokens=32 + output,
        max_tokens=500,
        arrival_unix_s=time.time(),
        predicted_output_tokens=predicted,
        scheduled_tokens=1,
        in_flight_tokens=1,
    )


def request(request_id: str, output: float = 10.0) -> RequestSpec:
    return RequestSpec(request_id, 64, 0, LengthEstimate(output))


class Harness:
    """A predictor, its engine's publisher, a follower that reserves, and one that only watches."""

    def __init__(
        self,
        endpoint: str,
        address: str,
        publisher: SnapshotPublisher,
        follower: Follower,
        watcher: Follower,
    ) -> None:
        self.endpoint = endpoint
        self.address = address
        self.publisher = publisher
        self.follower = follower
        self.watcher = watcher

    def publish(self, seen: EngineSnapshot) -> None:
        self.publisher.publish(wire.snapshot_to_proto(seen))

    def load(self) -> Load:
        return load_of(self.watcher)

    def predict(self, output: float = 10.0) -> Prediction:
        found = self.follower.predict(request("new", output))
        assert found is not None
        return found


def load_of(watcher: Follower) -> Load:
    """The load that the predictor tells; -1 in every field before it has told any."""
    return watcher.engine.believed.load() if watcher.engine.snapshot else Load(*[-1] * 7)


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float = 10.0) -> None:
    """Wait for `condition`; fails after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not await condition():
        assert time.monotonic() < end, "the condition never became true"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def predictor(tmp_path: Path, **changes: object) -> AsyncIterator[Harness]:
    endpoint = f"shm://{tmp_path}/snapshots"
    address = f"unix:{tmp_path}/p.sock"
    settings = PredictorSettings(
        listen=address,
        snapshot_endpoint=endpoint,
        name="e0",
        **changes,  # type: ignore[arg-type]
    )
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop))
    publisher = SnapshotPublisher(endpoint, heartbeat_s=0.05)
    try:
        follower, watcher = Follower(address), Follower(address)

        async def connected() -> bool:
            return follower.is_connected and watcher.is_connected

        await until(connected)
        yield Harness(endpoint, address, publisher, follower, watcher)
        follower.close()
        watcher.close()
    finally:
        publisher.close()
        stop.set()
        await task


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with predictor(tmp_path) as found:
        yield found


async def test_before_any_snapshot_it_says_so(harness: Harness) -> None:
    assert harness.watcher.engine.snapshot is None
    assert harness.follower.predict(request("new")) is None


async def test_a_late_subscriber_learns_from_the_heartbeat(tmp_path: Path) -> None:
    endpoint = f"shm://{tmp_path}/snapshots"
    publisher = SnapshotPublisher(endpoint, heartbeat_s=0.05)
    publisher.publish(wire.snapshot_to_proto(snapshot(1)))  # before any subscriber
    settings = PredictorSettings(listen=f"unix:{tmp_path}/p.sock", snapshot_endpoint=endpoint)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop))
    try:
        watcher = Follower(settings.listen)
        await asyncio.wait_for(watcher.known(), 10)
        assert watcher.snapshot.config.model_name == "m"
        watcher.close()
    finally:
        publisher.close()
        stop.set()
        await task


async def hear(harness: Harness, seen: EngineSnapshot) -> None:
    """Publish `seen` until the predictor has it (a new subscriber may miss the first)."""

    async def arrived() -> bool:
        harness.publish(seen)
        load = harness.load()
        return (load.running, load.waiting) == (len(seen.running), len(seen.waiting))

    await until(arrived)


async def test_it_learns_step_time_and_predicts_with_it(harness: Harness) -> None:
    await hear(harness, snapshot(1))
    shapes = [
        BatchShape(prefill, 64 * prefill, 2080 * prefill, decode, 100 * decode)
        for prefill in range(3)
        for decode in range(20)
        if prefill or decode
    ]
    for learned, sequence in enumerate(range(2, 200), 1):
        shape = shapes[sequence % len(shapes)]
        step = Step(sequence, time.time(), TRUTH.step_s(shape), shape)
        harness.publish(snapshot(sequence, completed_steps=(step,)))

        async def heard(steps: int = learned) -> bool:
            return harness.watcher.snapshot.calibration_steps >= steps

        if learned % 16 == 0:  # a full queue of a slow reader drops messages
            await until(heard)

    async def told() -> bool:
        found = harness.follower.predict(request("new"))
        return found is not None and found.calibration_steps >= 192

    await until(told)
    answer = harness.predict(output=10)
    first = TRUTH.step_s(BatchShape(1, 64, 2080, 0, 0))
    rest = 9 * TRUTH.step_s(BatchShape(decode_seqs=1, decode_pairs=70))
    assert answer.ttft_s == pytest.approx(first, rel=0.15)
    assert answer.e2e_s == pytest.approx(first + rest, rel=0.15)
    assert answer.calibration_steps >= 192


async def reserved(harness: Harness, count: int) -> None:
    """Wait until the predictor has `count` reservations."""

    async def counted() -> bool:
        return harness.load().reserved == count

    await until(counted)


async def test_reservations_count_until_a_snapshot_shows_them(harness: Harness) -> None:
    await hear(harness, snapshot(1))
    await harness.follower.known()
    before = harness.predict()
    for i in range(6):
        harness.follower.reserve(request(f"r{i}", 50.0))
    assert harness.predict().load.reserved == 6
    assert harness.predict().ttft_s > before.ttft_s
    await reserved(harness, 6)
    await hear(harness, snapshot(2, running=tuple(running(f"r{i}") for i in range(6))))
    assert harness.load().reserved == 0
    # A snapshot has shown r0 already: its late reservation must not count it twice.
    harness.follower.reserve(request("r0", 50.0))
    harness.follower.reserve(request("r9", 50.0))
    await reserved(harness, 1)


async def test_the_end_of_a_request_tells_what_was_seen_of_it(harness: Harness) -> None:
    await hear(harness, snapshot(1))
    await harness.follower.known()
    harness.follower.reserve(request("a"))
    await reserved(harness, 1)
    assert await harness.follower.ended(request("a"), answered=False) == pb.Seen()
    await reserved(harness, 0)
    harness.follower.reserve(request("a"))
    await reserved(harness, 1)
    await hear(harness, snapshot(2, running=(running("a", output=7),)))
    seen = await harness.follower.ended(request("a"))
    assert seen.output_tokens == 7
    assert seen.prompt_tokens == 32
    assert 0 < seen.ttft_s < 30


async def test_an_older_snapshot_changes_nothing_but_a_restart_starts_anew(
    harness: Harness,
) -> None:
    await hear(harness, snapshot(9, running=(running("a"),)))
    harness.publish(snapshot(3))
    await hear(harness, snapshot(10, running=(running("a"), running("b"))))
    harness.publish(snapshot(4, running=()))
    await asyncio.sleep(0.3)  # nothing must happen, so there is no condition to wait for
    assert harness.load().running == 2
    await hear(harness, snapshot(1, engine_run_id="another run"))
    assert harness.load().running == 0


async def test_garbage_is_dropped_and_listening_goes_on(tmp_path: Path) -> None:
    endpoint = f"shm://{tmp_path}/s.snapshots"
    settings = PredictorSettings(listen=f"unix:{tmp_path}/p.sock", snapshot_endpoint=endpoint)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop))
    log = LogWriter(path_of(endpoint))
    broken = wire.snapshot_to_proto(snapshot(2, running=(running("a"),)))
    broken.running.priority.append(0)
    try:
        watcher = Follower(settings.listen)

        async def heard() -> bool:
            log.write(b"\xff\xff not protobuf")
            log.write(broken.SerializeToString())
            log.write(b"", wire.snapshot_to_proto(snapshot(1)).SerializeToString())
            return watcher.engine.snapshot is not None

        await until(heard)
        assert load_of(watcher).running == 0
        watcher.close()
    finally:
        log.close()
        stop.set()
        await task


async def test_a_provisioner_that_follows_can_run_its_twin(harness: Harness) -> None:
    told = snapshot(1, running=(running("a"),))
    harness.publish(told)
    seen = FleetView(
        InstanceConfig("e0", "http://engine", harness.address), InstancePhase.READY, 0.0
    )
    async with aiohttp.ClientSession() as client:
        gatherer = Gatherer([], client, OPEN, api_key="")

        async def asked() -> InstanceFacts:
            (found,) = (await gatherer.gather([seen], time.time(), None)).instances
            return found

        async def heard() -> bool:
            return (await asked()).published() is not None

        await until(heard)
        found = await asked()
        await gatherer.close()
    published = found.published()
    assert published is not None
    assert published.config == CONFIG
    assert (found.running, found.max_num_seqs) == (1, CONFIG.max_num_seqs)
    assert (
        share_within(
            [EnginePlace(published)],
            EngineKind(published.config, published.step_time),
            [Coming(0.0, 10, 5)],
            Slo(1e6, 1e6),
            [0.0],
            0.99,
        )
        == 1.0
    )


async def test_an_engine_that_is_not_predicted_says_why(tmp_path: Path) -> None:
    async with predictor(tmp_path) as harness:
        told = "vLLM 9.9.0: it is newer than 0.33"
        harness.publisher.publish(EngineSnapshotMessage(unpredicted=told))

        async def told_why() -> bool:
            return harness.watcher.unpredicted == told

        await until(told_why)
        harness.publisher.publish(EngineSnapshotMessage(unpredicted="\n" * 300))  # dropped
        harness.publish(snapshot(1))

        async def described() -> bool:
            return harness.watcher.engine.snapshot is not None and not harness.watcher.unpredicted

        await until(described)


async def test_what_it_has_learnt_becomes_a_profile(harness: Harness) -> None:
    with pytest.raises(ProfileError, match="not heard of its engine"):
        await asyncio.to_thread(calibrated_profile, harness.address)
    draws, learnt = random.Random(1), 0
    for sequence in range(1, 31):
        steps = []
        for _ in range(50):
            chunk, seqs = draws.choice((0, 0, 64, 256)), draws.randrange(1, 9)
            shape = BatchShape(
                prefill_seqs=int(chunk > 0),
                prefill_tokens=chunk,
                prefill_pairs=chunk * (chunk + 1) // 2,
                decode_seqs=seqs,
                decode_pairs=seqs * draws.randrange(50, 500),
            )
            steps.append(Step(learnt, time.time(), TRUTH.step_s(shape), shape))
            learnt += 1
        await hear(harness, snapshot(sequence, completed_steps=tuple(steps)))
        if sequence == 2:
            with pytest.raises(ProfileError, match="wait for 1000"):
                await asyncio.to_thread(calibrated_profile, harness.address)
    found = await asyncio.to_thread(calibrated_profile, harness.address)
    assert (found.name, found.total_blocks, found.max_num_seqs) == ("calibrated/m", 1000, 8)
    assert (found.max_num_batched_tokens, found.max_model_len) == (512, 1024)
    shape = BatchShape(prefill_seqs=1, prefill_tokens=100, prefill_pairs=5050, decode_seqs=4)
    assert profile_step_time(found).step_s(shape) == pytest.approx(TRUTH.step_s(shape), rel=0.05)
    with pytest.raises(ProfileError, match="no predictor"):
        await asyncio.to_thread(calibrated_profile, f"{harness.address}.none")
