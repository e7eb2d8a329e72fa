"""The `Predict` call as a predictor's clients see it, over a socket to a real process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from foretell import wire
from foretell.model import LengthEstimate, RequestSpec
from foretell.services.backend.publisher import SnapshotPublisher
from foretell.services.scheduler.placing.peers import open_channel
from foretell.tools.harness.cases import (
    MEAN_OUTPUT_TOKENS,
    MEAN_PROMPT_TOKENS,
    Case,
    Size,
    arrivals_per_s,
    make_case,
)
from foretell.tools.harness.kernel import PROFILE, profile_step_time
from foretell.tools.harness.processes import STOP_GRACE_S, start_service
from foretell.v1 import predictor_pb2, predictor_pb2_grpc

Transport = Literal["unix", "tcp"]

_WARMUP = 20  # rounds
_DEADLINE_S = 30.0
_POLL_S = 0.002
_RESERVED_S = 3600.0  # longer than a measurement takes
_STATUS = predictor_pb2.StatusRequest()


@dataclass(frozen=True, slots=True)
class RpcTimes:
    """Seconds of each call, by grpc.aio on the loop of the services, as the scheduler calls."""

    predict: list[float] = field(default_factory=list)
    status: list[float] = field(default_factory=list)
    """Seconds of an empty call on the same way."""


async def time_rpc(
    size: Size,
    predictions: int,
    tick: Callable[[], None],
    *,
    transport: Transport = "unix",
    async_scheduling: bool = True,
) -> RpcTimes:
    """Time `predictions` calls.

    Each is the first after a new snapshot, with requests on their way that it does not show, as in
    a cluster in which engines step more often than they are asked.
    """
    times = RpcTimes()
    with TemporaryDirectory(prefix="foretell-bench-") as folder:
        endpoint = f"ipc://{folder}/snapshots.ipc"
        publisher = SnapshotPublisher(endpoint, heartbeat_s=0.2)
        try:
            async with (
                _running_predictor(Path(folder), endpoint, transport) as address,
                open_channel(address) as channel,
            ):
                stub = predictor_pb2_grpc.PredictorStub(channel)
                traffic = _Traffic(stub, size)
                for request in make_case(size, 0, async_scheduling=True).reserved:
                    await _reserve(stub, request)
                for turn in range(-_WARMUP, predictions):
                    await traffic.go_on()
                    case = make_case(size, turn + _WARMUP + 1, async_scheduling=async_scheduling)
                    await _tell(publisher, stub, case)
                    await _call(stub, case, times if turn >= 0 else RpcTimes())
                    if turn >= 0:
                        tick()
        finally:
            publisher.close()
    return times


@asynccontextmanager
async def _running_predictor(
    folder: Path, endpoint: str, transport: Transport
) -> AsyncIterator[str]:
    """Yields a predictor's address; raises `ChildFailed` when it does not come to serve."""
    listen = f"--listen=unix:{folder}/predictor.sock" if transport == "unix" else "--port=0"
    flags = (listen, f"--snapshot-endpoint={endpoint}", f"--profile={PROFILE}")
    child, facts = await start_service(
        "predictor", "foretell.services.predictor", *flags, folder=folder, timeout_s=_DEADLINE_S
    )
    try:
        yield str(facts["address"])
    finally:
        await child.stop(STOP_GRACE_S)


async def _tell(
    publisher: SnapshotPublisher, stub: predictor_pb2_grpc.PredictorStub, case: Case
) -> None:
    """Publish the case's snapshot, wait until the predictor has it."""
    snapshot = case.snapshot
    publisher.publish(wire.snapshot_to_proto(snapshot))
    wanted = snapshot.config.total_blocks - snapshot.free_blocks
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        status = await stub.Status(_STATUS, timeout=_DEADLINE_S)
        if status.snapshot_age_s >= 0 and status.load.used_blocks == wanted:
            break
        if time.monotonic() > deadline:
            raise TimeoutError("the predictor never heard of the snapshot")
        await asyncio.sleep(_POLL_S)


class _Traffic:
    """Makes a predictor believe that requests arrive and end at a steady rate."""

    def __init__(self, stub: predictor_pb2_grpc.PredictorStub, size: Size) -> None:
        self._stub = stub
        self._rate_per_s = arrivals_per_s(size, profile_step_time())
        self._began_s = time.monotonic()
        self._count = 0

    async def go_on(self) -> None:
        """Reserve and complete whatever is due."""
        due = (time.monotonic() - self._began_s) * self._rate_per_s
        length = LengthEstimate(MEAN_OUTPUT_TOKENS)
        while self._count < due:
            request = RequestSpec(f"past-{self._count}", round(MEAN_PROMPT_TOKENS), 0, length)
            await _reserve(self._stub, request)
            done = predictor_pb2.CompleteRequest(request_id=request.request_id)
            await self._stub.Complete(done, timeout=_DEADLINE_S)
            self._count += 1


async def _reserve(stub: predictor_pb2_grpc.PredictorStub, request: RequestSpec) -> None:
    spec = wire.request_to_proto(request)
    message = predictor_pb2.ReserveRequest(request=spec, ttl_s=_RESERVED_S)
    await stub.Reserve(message, timeout=_DEADLINE_S)


async def _call(stub: predictor_pb2_grpc.PredictorStub, case: Case, times: RpcTimes) -> None:
    message = predictor_pb2.PredictRequest(
        request=wire.request_to_proto(case.newcomer), announced_only=True, means_only=True
    )
    started = time.perf_counter()
    answer = await stub.Predict(message, timeout=_DEADLINE_S)
    between = time.perf_counter()
    await stub.Status(_STATUS, timeout=_DEADLINE_S)
    ended = time.perf_counter()
    _check(answer, case)
    times.predict.append(between - started)
    times.status.append(ended - between)


def _check(answer: predictor_pb2.PredictResponse, case: Case) -> None:
    snapshot, load = case.snapshot, answer.load
    told = (len(snapshot.running), len(snapshot.waiting), len(case.reserved))
    if (load.running, load.waiting, load.reserved) != told:
        raise RuntimeError("the predictor answered for another state than it was told")
