"""The predictor over real sockets: snapshots by ZMQ, predictions by gRPC."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import grpc
import pytest
import zmq

from foretell import wire
from foretell.config import PredictorSettings
from foretell.config.instances import InstanceConfig
from foretell.latency.linear import LinearStepTime
from foretell.model import (
    BatchShape,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    RequestSpec,
    RequestState,
    Slo,
    Step,
)
from foretell.provision import InstanceFacts, Phase
from foretell.provision.rollout import Coming, EngineKind, EnginePlace, share_within
from foretell.services.backend.publisher import SnapshotPublisher
from foretell.services.predictor.__main__ import serve
from foretell.services.process.traffic import OPEN
from foretell.services.provisioner.fleet import FleetView
from foretell.services.provisioner.gather import Gatherer
from foretell.v1 import predictor_pb2 as pb
from foretell.v1 import predictor_pb2_grpc
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


def request(request_id: str, output: float = 10.0) -> pb.RequestSpec:
    return wire.request_to_proto(RequestSpec(request_id, 64, 0, LengthEstimate(output)))


class Harness:
    """A predictor, the publisher it listens to, and a stub."""

    def __init__(
        self,
        endpoint: str,
        address: str,
        publisher: SnapshotPublisher,
        stub: predictor_pb2_grpc.PredictorStub,
    ) -> None:
        self.endpoint = endpoint
        self.address = address
        self.publisher = publisher
        self.stub = stub

    def publish(self, seen: EngineSnapshot) -> None:
        self.publisher.publish(wire.snapshot_to_proto(seen))

    async def status(self) -> pb.StatusResponse:
        return await self.stub.Status(pb.StatusRequest())

    async def predict(self, request_id: str = "new", output: float = 10.0) -> pb.PredictResponse:
        return await self.stub.Predict(pb.PredictRequest(request=request(request_id, output)))


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
        async with grpc.aio.insecure_channel(address) as channel:
            stub = predictor_pb2_grpc.PredictorStub(channel)
            await stub.Status(pb.StatusRequest(), wait_for_ready=True, timeout=10)
            yield Harness(endpoint, address, publisher, stub)
    finally:
        publisher.close()
        stop.set()
        await task


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with predictor(tmp_path) as found:
        yield found


async def test_before_any_snapshot_it_says_so(harness: Harness) -> None:
    assert (await harness.status()).snapshot_age_s == -1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await harness.predict()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "e0" in (caught.value.details() or "")


@pytest.mark.parametrize("scheme", ["ipc", "shm"])
async def test_a_late_subscriber_learns_from_the_heartbeat(scheme: str, tmp_path: Path) -> None:
    endpoint = f"{scheme}://{tmp_path}/snapshots"
    publisher = SnapshotPublisher(endpoint, heartbeat_s=0.05)
    publisher.publish(wire.snapshot_to_proto(snapshot(1)))  # nobody listens yet
    settings = PredictorSettings(listen=f"unix:{tmp_path}/p.sock", snapshot_endpoint=endpoint)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop))
    try:
        async with grpc.aio.insecure_channel(settings.listen) as channel:
            stub = predictor_pb2_grpc.PredictorStub(channel)

            async def heard() -> bool:
                answer = await stub.Status(pb.StatusRequest(), wait_for_ready=True, timeout=10)
                return bool(answer.model_name == "m")

            await until(heard)
    finally:
        publisher.close()
        stop.set()
        await task


async def hear(harness: Harness, seen: EngineSnapshot) -> None:
    """Publish `seen` until the predictor has it (a new subscriber may miss the first)."""

    async def arrived() -> bool:
        harness.publish(seen)
        status = await harness.status()
        return bool(
            status.load.running == len(seen.running) and status.load.waiting == len(seen.waiting)
        ) and bool(status.model_name)

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
            return bool((await harness.status()).calibration_steps >= steps)

        if learned % 16 == 0:  # a publisher drops what a slow reader leaves in the queue
            await until(heard)

    answer = await harness.predict(output=10)
    first = TRUTH.step_s(BatchShape(1, 64, 2080, 0, 0))
    rest = 9 * TRUTH.step_s(BatchShape(decode_seqs=1, decode_pairs=70))
    assert answer.ttft_s == pytest.approx(first, rel=0.15)
    assert answer.e2e_s == pytest.approx(first + rest, rel=0.15)
    assert answer.calibration_steps >= 192


async def test_reservations_count_until_a_snapshot_shows_them(harness: Harness) -> None:
    await hear(harness, snapshot(1))
    before = await harness.predict()
    for i in range(6):
        await harness.stub.Reserve(pb.ReserveRequest(request=request(f"r{i}", 50.0)))
    reserved = await harness.predict()
    assert reserved.load.reserved == 6
    assert reserved.ttft_s > before.ttft_s
    await hear(harness, snapshot(2, running=tuple(running(f"r{i}") for i in range(6))))
    assert (await harness.status()).load.reserved == 0
    # The engine has shown it: a reservation that comes late must not count it twice.
    await harness.stub.Reserve(pb.ReserveRequest(request=request("r0", 50.0)))
    assert (await harness.status()).load.reserved == 0


async def test_reserve_answers_what_is_foretold_to_who_asks(harness: Harness) -> None:
    reserve = pb.ReserveRequest(request=request("early"), predict=True)
    assert not (await harness.stub.Reserve(reserve)).HasField("prediction")  # no snapshot yet
    await hear(harness, snapshot(1, running=(running("a"), running("b"))))
    before = await harness.predict()
    answer = await harness.stub.Reserve(pb.ReserveRequest(request=request("r", 10.0)))
    assert not answer.HasField("prediction")
    answer = await harness.stub.Reserve(pb.ReserveRequest(request=request("new"), predict=True))
    assert answer.prediction.e2e_s >= before.e2e_s > 0  # behind the other, not behind itself
    assert answer.prediction.load.reserved == 2


async def test_what_a_request_costs_the_others_is_told_to_who_asks(harness: Harness) -> None:
    await hear(harness, snapshot(1, running=(running("a"), running("b"))))
    unasked = await harness.predict()
    assert not any(unasked.HasField(name) for name in ("added_ttft_s", "added_e2e_s"))
    question = pb.PredictRequest(request=request("new", 10.0), externality=True)
    costs = []
    for _ in range(2):
        answer = await harness.stub.Predict(question)
        assert answer.added_ttft_s >= 0
        costs.append(answer.added_e2e_s)
        await harness.stub.Reserve(pb.ReserveRequest(request=request("c", 10.0)))
    assert 0 < costs[0] < costs[1]  # one more is there to be delayed


async def test_quantiles_are_told_unless_only_means_are_asked_for(harness: Harness) -> None:
    await hear(harness, snapshot(1))
    whole = await harness.predict()
    means = await harness.stub.Predict(pb.PredictRequest(request=request("new"), means_only=True))
    assert len(whole.ttft_quantiles) == len(whole.e2e_quantiles) == 6
    assert [*means.ttft_quantiles, *means.e2e_quantiles] == []
    assert means.e2e_s == pytest.approx(whole.e2e_s, rel=0.01)


async def test_a_reservation_expires(harness: Harness) -> None:
    await hear(harness, snapshot(1))
    await harness.stub.Reserve(pb.ReserveRequest(request=request("lost"), ttl_s=0.05))

    async def gone() -> bool:
        return bool((await harness.status()).load.reserved == 0)

    await until(gone)


async def test_complete_releases_and_tells_what_was_seen(harness: Harness) -> None:
    await hear(harness, snapshot(1))
    await harness.stub.Reserve(pb.ReserveRequest(request=request("a")))
    released = await harness.stub.Complete(pb.CompleteRequest(request_id="a"))
    assert released == pb.CompleteResponse()
    assert (await harness.status()).load.reserved == 0
    await harness.stub.Reserve(pb.ReserveRequest(request=request("a")))
    await hear(harness, snapshot(2, running=(running("a", output=7),)))
    seen = await harness.stub.Complete(pb.CompleteRequest(request_id="a"))
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
    await asyncio.sleep(0.1)  # nothing may happen: there is no condition to wait for
    assert (await harness.status()).load.running == 2
    await hear(harness, snapshot(1, engine_run_id="another run"))
    assert (await harness.status()).load.running == 0


async def test_garbage_is_dropped_and_listening_goes_on(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s.ipc"
    settings = PredictorSettings(listen=f"unix:{tmp_path}/p.sock", snapshot_endpoint=endpoint)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop))
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(endpoint)
    broken = wire.snapshot_to_proto(snapshot(2, running=(running("a"),)))
    broken.running.priority.append(0)
    try:
        async with grpc.aio.insecure_channel(settings.listen) as channel:
            stub = predictor_pb2_grpc.PredictorStub(channel)

            async def heard() -> bool:
                socket.send(b"\xff\xff not protobuf")
                socket.send(broken.SerializeToString())
                socket.send(wire.snapshot_to_proto(snapshot(1)).SerializeToString())
                answer = await stub.Status(pb.StatusRequest(), wait_for_ready=True, timeout=10)
                return bool(answer.model_name == "m")

            await until(heard)
            assert (await stub.Status(pb.StatusRequest())).load.running == 0
    finally:
        socket.close()
        context.term()
        stop.set()
        await task


async def test_bad_requests_name_the_field(harness: Harness) -> None:
    await hear(harness, snapshot(1))
    for call in (
        harness.stub.Predict(pb.PredictRequest(request=pb.RequestSpec(request_id="x"))),
        harness.stub.Reserve(pb.ReserveRequest(request=pb.RequestSpec(prompt_tokens=3))),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "request" in (caught.value.details() or "")


async def test_a_prompt_that_begins_like_one_that_was_sent_is_found_cached(
    harness: Harness,
) -> None:
    def asking(request_id: str) -> pb.RequestSpec:
        length = LengthEstimate(5.0, source="hint")
        return wire.request_to_proto(
            RequestSpec(request_id, 710, 0, length, prefix=(7, 8, 9), prefix_chunk_tokens=200.0)
        )

    await hear(harness, snapshot(1))
    cold = await harness.stub.Predict(pb.PredictRequest(request=asking("a")))
    await harness.stub.Reserve(pb.ReserveRequest(request=asking("a")))
    await hear(harness, snapshot(2, running=(replace(running("a"), cached_tokens=32),)))
    warm = await harness.stub.Predict(pb.PredictRequest(request=asking("b")))
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 592)
    assert warm.ttft_s < cold.ttft_s
    seen = await harness.stub.Complete(pb.CompleteRequest(request_id="a"))
    assert seen.cached_tokens == 32


async def test_whoever_asks_for_the_state_can_run_its_twin(harness: Harness) -> None:
    assert (await harness.stub.State(pb.StateRequest())).snapshot_age_s == -1
    told = snapshot(1, running=(running("a"),))
    harness.publish(told)
    seen = FleetView(InstanceConfig("e0", "http://engine", harness.address), Phase.READY, 0.0)
    async with aiohttp.ClientSession() as client:
        gatherer = Gatherer([], client, OPEN, api_key="", with_snapshots=True)

        async def asked() -> InstanceFacts:
            (found,) = (await gatherer.gather([seen], time.time(), None)).instances
            return found

        async def heard() -> bool:
            return (await asked()).snapshot is not None

        await until(heard)
        found = await asked()
        await gatherer.close()
    assert found.snapshot is not None
    assert found.step_time is not None
    assert found.snapshot.config == CONFIG
    assert [r.request_id for r in found.snapshot.running] == ["chatcmpl-a"]
    assert (found.running, found.max_num_seqs) == (1, CONFIG.max_num_seqs)
    assert (
        share_within(
            [EnginePlace(found.snapshot)],
            EngineKind(found.snapshot.config, found.step_time),
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
            return (await harness.status()).unpredicted == told

        await until(told_why)
        harness.publisher.publish(EngineSnapshotMessage(unpredicted="\n" * 300))  # dropped
        harness.publish(snapshot(1))

        async def described() -> bool:
            status = await harness.status()
            return status.snapshot_age_s >= 0 and not status.unpredicted

        await until(described)
