"""The provisioner in advisory mode, before real schedulers and scripted engines."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from engines import answer, engines, gated
from provisioners import provisioning
from schedulers import instances_json, running

from foretell.services.process.traffic import OPEN, Traffic
from foretell.services.provisioner.gather import Gatherer
from foretell.services.provisioner.keda import external_scaler
from foretell.services.provisioner.lease import FileLease
from foretell.services.provisioner.loop import Loop
from foretell.services.provisioner.metrics import ProvisionerMetrics
from foretell.services.provisioner.record import DecisionRecord
from foretell.v1 import externalscaler_pb2 as keda
from foretell.v1 import externalscaler_pb2_grpc as keda_grpc

TARGET = {"strategy": "target", "strategy_parameters": {"requests": "2", "tolerance": "0"}}


async def test_it_advises_by_what_is_in_progress_and_says_why(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with engines(gated(gate), answer) as (first, second):
        instances = instances_json([first, second])
        async with (
            running(tmp_path, [first], policy="round_robin") as scheduler,
            provisioning(
                tmp_path, schedulers=scheduler.url, instances=instances, maximum=3, **TARGET
            ) as provisioner,
        ):
            # Nothing is in progress: the minimum.
            decision = await provisioner.until_desired(1, "bounds")
            assert decision["instances"] == {"warming": 0, "ready": 2, "draining": 0}
            answers = [asyncio.create_task(scheduler.complete()) for _ in range(5)]
            decision = await provisioner.until_desired(3)
            assert "5 requests in progress" in decision["why"]
            seen = await provisioner.metrics()
            assert seen["foretell_desired_replicas",] == 3
            assert seen["foretell_desired_reason", "strategy"] == 1
            assert seen["foretell_desired_reason", "stale"] == 0
            assert math.isnan(seen["foretell_desired_confidence_ratio",])
            assert math.isfinite(seen["foretell_desired_age_seconds",])
            assert seen["foretell_provisioned_instances", "ready"] == 2
            assert seen["foretell_provisioner_active",] == 1
            gate.set()
            assert {(await each).status_code for each in answers} == {200}
            await provisioner.until_desired(1, "bounds")
            assert (await provisioner.metrics())["foretell_provisioner_arrivals_total",] == 5
            assert second.received == []  # it only advises
    assert {1, 3} <= {decision["desired"] for decision in decisions_in(tmp_path)}


def decisions_in(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "state" / "decisions.jsonl").read_text()
    return [json.loads(line) for line in text.split("\n")[:-1]]


async def test_without_numbers_it_holds_and_says_so(tmp_path: Path) -> None:
    async with engines(answer) as (engine,):
        values = {"instances": instances_json([engine]), "maximum": 3, **TARGET}
        gone = "http://127.0.0.1:9"
        async with provisioning(tmp_path, schedulers=gone, **values) as provisioner:
            decision = await provisioner.until_desired(1, "stale")
            assert decision["age_s"] is None
            assert (await provisioner.metrics())["foretell_desired_reason", "stale"] == 1
        async with running(tmp_path, [engine]) as scheduler:
            both = f"{scheduler.url},{gone}"  # one replica's state is unknown: the same
            async with provisioning(tmp_path, "q", schedulers=both, **values) as provisioner:
                await provisioner.until_desired(1, "stale")


async def test_an_unreadable_list_of_instances_decides_nothing(tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere.json")
    async with provisioning(tmp_path, instances=missing, **TARGET) as provisioner:

        async def failed() -> float:
            return (await provisioner.metrics())["foretell_driver_failures_total",]

        async with asyncio.timeout(20):
            while await failed() < 2:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.01)
        assert (await provisioner.client.get("/ready")).status_code == 503
        assert (await provisioner.client.get("/health")).status_code == 200


async def test_of_two_replicas_one_decides_and_the_other_takes_over(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        values = {"schedulers": scheduler.url, "instances": instances_json([engine]), **TARGET}
        async with provisioning(tmp_path, "b", **values) as second_later:
            await second_later.until_desired(1, "bounds")
            async with provisioning(tmp_path, "a", **values) as first_later:
                assert (await first_later.status())["active"] is False
                assert (await first_later.client.get("/ready")).status_code == 503
                assert (await first_later.metrics())["foretell_provisioner_active",] == 0
            assert (await second_later.status())["epoch"] == 1
            third = provisioning(tmp_path, "c", **values)
            async with third as standby:
                assert (await standby.status())["active"] is False
        # The lease's file outlives all of them.
        async with provisioning(tmp_path, "d", **values) as after:
            await after.until_desired(1, "bounds")
            assert (await after.status())["epoch"] == 2


async def test_keda_scales_by_what_all_five_methods_say(tmp_path: Path) -> None:
    gate, ref = asyncio.Event(), keda.ScaledObjectRef(name="engines", namespace="llm")
    async with engines(gated(gate)) as (engine,), running(tmp_path, [engine]) as scheduler:
        values = {"schedulers": scheduler.url, "instances": instances_json([engine]), **TARGET}
        values |= {"minimum": 0, "maximum": 3, "keda": "127.0.0.1:0"}
        async with (
            provisioning(tmp_path, "p", **values) as provisioner,
            grpc.aio.insecure_channel(provisioner.ready["keda"]) as channel,
        ):
            await provisioner.until_desired(0)
            scaler = keda_grpc.ExternalScalerStub(channel)
            (spec,) = (await scaler.GetMetricSpec(ref)).metricSpecs
            assert (spec.targetSize, spec.targetSizeFloat) == (1, 1.0)
            specs = scaler.StreamMetricSpec(ref)
            assert list((await specs.read()).metricSpecs) == [spec]
            asked = keda.GetMetricsRequest(scaledObjectRef=ref, metricName=spec.metricName)
            (value,) = (await scaler.GetMetrics(asked)).metricValues
            assert (value.metricName, value.metricValueFloat) == (spec.metricName, 0.0)
            assert not (await scaler.IsActive(ref)).result
            active = scaler.StreamIsActive(ref)
            assert not (await active.read()).result
            answers = [asyncio.create_task(scheduler.complete()) for _ in range(3)]
            assert (await active.read()).result  # comes without another call
            await provisioner.until_desired(2)
            (value,) = (await scaler.GetMetrics(asked)).metricValues
            assert (value.metricValue, value.metricValueFloat) == (2, 2.0)
            assert (await scaler.IsActive(ref)).result
            gate.set()
            await asyncio.gather(*answers)
            assert not (await active.read()).result
            with pytest.raises(grpc.aio.AioRpcError, match="the only metric"):
                await scaler.GetMetrics(keda.GetMetricsRequest(metricName="other"))
            async with (
                provisioning(tmp_path, "standby", **values) as standby,
                grpc.aio.insecure_channel(standby.ready["keda"]) as other,
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await keda_grpc.ExternalScalerStub(other).IsActive(ref)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            specs.cancel()
            active.cancel()


async def test_keda_is_not_served_to_other_hosts_without_certificates(tmp_path: Path) -> None:
    lease, metrics = FileLease(tmp_path, "p"), ProvisionerMetrics()
    async with aiohttp.ClientSession() as client:
        gatherer = Gatherer([], client, OPEN, api_key="")
        record = DecisionRecord(tmp_path)
        loop = Loop(lease, pytest.fail, gatherer, record, metrics, every_s=1.0)
        with pytest.raises(SystemExit, match="other hosts can reach"):  # KEDA cannot send a secret
            async with external_scaler(loop, "0.0.0.0:0", Traffic(secret="shared")):
                pass
