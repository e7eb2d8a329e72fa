"""KEDA's external scaler: serves the desired number as a metric by which KEDA and the HPA scale."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc

from foretell.provision import ProvisionDecision
from foretell.services.process import calls
from foretell.services.process.traffic import Traffic
from foretell.services.provisioner.loop import Loop
from foretell.services.provisioner.tuning import TUNING
from foretell.v1 import externalscaler_pb2 as pb
from foretell.v1 import externalscaler_pb2_grpc

METRIC = "foretell_desired_replicas"
"""With a target of 1 for each instance, the HPA computes as many instances as this metric says."""

Context = grpc.aio.ServicerContext[Any, Any]


class KedaScaler(externalscaler_pb2_grpc.ExternalScalerServicer):
    """Answers from the latest decision. UNAVAILABLE on a standby and before the first decision.

    KEDA then keeps its current number.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._changed = asyncio.Event()
        loop.listeners.append(self._hear)

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        decision = await self._decision(context)
        return pb.IsActiveResponse(result=decision.desired > 0)

    async def StreamIsActive(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.IsActiveResponse]:
        sent: bool | None = None
        while True:
            changed = self._changed
            active = (await self._decision(context)).desired > 0
            if active is not sent:
                sent = active
                yield pb.IsActiveResponse(result=active)
            await changed.wait()

    async def GetMetricSpec(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> pb.GetMetricSpecResponse:
        return _spec()

    async def GetMetrics(
        self, request: pb.GetMetricsRequest, context: Context
    ) -> pb.GetMetricsResponse:
        if request.metricName != METRIC:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the only metric is {METRIC}")
        desired = (await self._decision(context)).desired
        value = pb.MetricValue(metricName=METRIC, metricValue=desired, metricValueFloat=desired)
        return pb.GetMetricsResponse(metricValues=[value])

    async def StreamMetricSpec(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.GetMetricSpecResponse]:
        yield _spec()
        await asyncio.Event().wait()  # it never changes; the stream stays open until KEDA ends it

    def _hear(self, decision: ProvisionDecision) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _decision(self, context: Context) -> ProvisionDecision:
        if self._loop.decision is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this replica decides nothing now")
            raise AssertionError("abort() does not return")
        return self._loop.decision


def _spec() -> pb.GetMetricSpecResponse:
    spec = pb.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
    return pb.GetMetricSpecResponse(metricSpecs=[spec])


@asynccontextmanager
async def external_scaler(loop: Loop, address: str, traffic: Traffic) -> AsyncIterator[str]:
    """Serve KEDA at a gRPC address; yield the address with the port that was bound.

    KEDA knows no shared secret: an address that other hosts can reach must demand certificates.
    """
    traffic = replace(traffic, secret="")
    server = calls.server(traffic, maximum_concurrent_rpcs=TUNING.keda_calls)
    externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server(KedaScaler(loop), server)
    port = calls.bind(traffic, server, address)
    await server.start()
    try:
        yield address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
    finally:
        await server.stop(TUNING.grace_s)
