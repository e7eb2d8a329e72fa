"""The scheduler's metrics and request log, with every policy."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines import MODEL, answer, engines, gated
from prometheus_client.parser import text_string_to_metric_families
from schedulers import Scheduler, running, until
from scripted_peers import LOAD, Predictor, serving

from foretell.model import OFFLINE_PRIORITY
from foretell.policy import POLICIES
from foretell.policy.baselines import BASELINES
from foretell.v1 import predictor_pb2
from foretell.workload import parse_request_log

ERRORS = ("ttft", "e2e", "output_tokens")


async def test_metrics_and_log_hold_predicted_against_actual(tmp_path: Path) -> None:
    sidecar = Predictor(e2e_s=5.0)
    log = tmp_path / "logs" / "requests.jsonl"
    async with (
        engines(answer) as (engine,),
        serving(sidecar) as address,
        running(
            tmp_path,
            [engine],
            [address],
            policy="predicted_latency",
            request_log=str(log),
        ) as scheduler,
    ):
        response = await scheduler.complete(
            stream=True,
            max_tokens=64,
            prompt="hello there",
            vllm_xargs={"foretell_output_tokens": 30},
        )
        await until(lambda: len(log.read_text().splitlines()) == 1)
        families = {f.name: f for f in text_string_to_metric_families(await scheduler.metrics())}
        for name in ERRORS:
            family = families[f"foretell_{name}_prediction_error_ratio"]
            (count,) = (s for s in family.samples if s.name.endswith("_count"))
            assert count.value == 1
            assert count.labels == {
                "model_name": MODEL, "instance_id": "engine-0", "engine": "vllm",
            }  # fmt: skip
        buckets = "foretell_output_tokens_prediction_error_ratio_bucket"  # 30 / 20 - 1 is 0.5
        assert await scheduler.metric(buckets, le="0.25") == 0
        assert await scheduler.metric(buckets, le="0.5") == 1
        assert await scheduler.metric("foretell_placement_seconds_count") == 1
        assert await scheduler.metric("foretell_ttft_seconds_count", policy="predicted_latency")
        assert not any("request_id" in s.labels for f in families.values() for s in f.samples)

        line: dict[str, Any] = json.loads(log.read_text())
        assert line["request_id"] == response.headers["x-request-id"]
        assert line["instance_id"] == "engine-0"
        assert (line["status"], line["finished"], line["stream"]) == (200, True, True)
        assert (line["predicted_output_tokens"], line["output_tokens"]) == (30.0, 20)
        assert (line["predicted_ttft_s"], line["predicted_e2e_s"]) == (0.5, 5.0)
        assert 0 < line["ttft_s"] <= line["e2e_s"] < 60
        assert (line["prompt_tokens"], line["length_source"]) == (7, "hint")
        assert "hello there" not in log.read_text()

        (told,) = parse_request_log(log.read_text().splitlines()).requests
        assert (told.prompt_tokens, told.output_tokens) == (7, 20)
        assert told.t_s == pytest.approx(line["time_unix_s"] - line["e2e_s"], abs=0.1)


async def test_the_sidecar_fills_in_what_an_answer_does_not_tell(tmp_path: Path) -> None:
    async def wordless(exchange: Any) -> None:
        sidecar.completed = predictor_pb2.Seen(ttft_s=0.001, output_tokens=11, prompt_tokens=5)
        await asyncio.sleep(0.002)  # the first token comes before the answer ends
        await exchange.whole(200, b"{}")

    sidecar = Predictor()
    log = tmp_path / "log"
    async with (
        engines(wordless) as (engine,),
        serving(sidecar) as address,
        running(tmp_path, [engine], [address], request_log=str(log)) as scheduler,
    ):
        await scheduler.complete()
        await until(lambda: len(log.read_text().splitlines()) == 1)
        line = json.loads(log.read_text())
        assert (line["output_tokens"], line["prompt_tokens"]) == (12, 5)
        assert 0 < line["ttft_s"] < line["e2e_s"]


async def test_the_way_of_the_answer_is_learned_from_streams(tmp_path: Path) -> None:
    """Predictions include the delay from the engine's first token to the stream's first byte."""

    async def slow_to_speak(exchange: Any) -> None:
        await asyncio.sleep(0.05)
        await answer(exchange)

    sidecar = Predictor()
    sidecar.completed = predictor_pb2.Seen(ttft_s=0.001, output_tokens=11)
    async with (
        engines(slow_to_speak) as (engine,),
        serving(sidecar) as address,
        running(
            tmp_path,
            [engine],
            [address],
            policy="predicted_latency",
        ) as scheduler,
    ):
        first = await scheduler.complete(stream=True)
        await scheduler.until_metric("foretell_ttft_seconds_count", 1)
        second = await scheduler.complete(stream=True)
        later = [
            float(second.headers[name]) - float(first.headers[name])
            for name in ("x-foretell-predicted-ttft-s", "x-foretell-predicted-e2e-s")
        ]
        assert later[0] >= 0.1 * (0.05 - 0.001) - 1e-4
        assert later[1] == pytest.approx(later[0], abs=2e-4)


async def test_the_log_is_rotated(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with (
        engines(answer) as (engine,),
        running(tmp_path, [engine], request_log=str(log), request_log_max_bytes=2_000) as scheduler,
    ):
        for _ in range(20):
            await scheduler.complete()
        await until((tmp_path / "log.1").exists)
        await scheduler.until_metric("foretell_e2e_seconds_count", 20)
    assert log.stat().st_size <= 2_000
    assert not (tmp_path / "log.2").exists()


async def test_offline_requests_count_apart_and_are_no_demand(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        await scheduler.complete()
        await scheduler.complete(priority=OFFLINE_PRIORITY)
        await scheduler.complete(vllm_xargs={"class": "offline"})
        for of, count in ("online", 1), ("offline", 2):
            await scheduler.until_metric("foretell_e2e_seconds_count", count, **{"class": of})
            tokens = await scheduler.metric("foretell_output_tokens_total", **{"class": of})
            assert tokens == count * await scheduler.metric(
                "foretell_output_tokens_total", **{"class": "online"}
            )
        demand = (await scheduler.status())["demand"]
        assert demand["arrived_total"] == 1
        assert len(demand["lengths"]) == 1


async def test_unknown_models_make_no_new_series(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        await scheduler.complete()
        await scheduler.until_metric("foretell_e2e_seconds_count", 1)
        assert (await scheduler.complete(model="nonsense")).status_code == 404
        series = len((await scheduler.metrics()).splitlines())
        for i in range(20):
            assert (await scheduler.complete(model=f"model-{i}")).status_code == 404
        assert len((await scheduler.metrics()).splitlines()) == series
        assert await scheduler.metric("foretell_requests_total", status="404") == 21


async def run_together(
    scheduler: Scheduler, gate: asyncio.Event, count: int
) -> list[dict[str, Any]]:
    """Have `count` requests in progress at the same time; return the instances' state then."""
    work = []
    for i in range(count):
        work.append(asyncio.create_task(scheduler.complete()))
        await scheduler.until(
            lambda s, n=i + 1: sum(x["outstanding"] for x in s["instances"]) == n  # type: ignore[misc]
        )
    instances = (await scheduler.status())["instances"]
    gate.set()
    assert all([(await task).status_code == 200 for task in work])
    return instances


async def test_what_is_told_is_what_reserve_foretells(tmp_path: Path) -> None:
    """Candidates are compared as if no other requests came; the told prediction counts them."""
    predictor, gate = Predictor(e2e_s=1.0), asyncio.Event()
    predictor.predicted_alone = replace(predictor.predicted, ttft_s=2.0, e2e_s=3.0)
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(engines(gated(gate)))
        address = await stack.enter_async_context(serving(predictor))
        log = tmp_path / "requests.jsonl"
        scheduler = await stack.enter_async_context(
            running(tmp_path, one, [address], policy="predicted_latency", request_log=str(log))
        )
        request = asyncio.create_task(scheduler.complete())
        await until(lambda: bool(predictor.reserved))
        gate.set()
        await request
        await until(lambda: log.exists() and bool(log.read_text()))
        assert json.loads(log.read_text())["predicted_e2e_s"] == 3.0


@pytest.mark.parametrize("policy", [*POLICIES, *BASELINES])
async def test_every_policy_works_by_its_name(tmp_path: Path, policy: str) -> None:
    gate = asyncio.Event()
    slow, fast = Predictor(e2e_s=9.0), Predictor(e2e_s=1.0)
    slow.predicted.load = LOAD._replace(used_blocks=90)
    for sidecar in (slow, fast):
        sidecar.predicted.added_ttft_s = sidecar.predicted.added_e2e_s = 0.5
    async with (
        engines(gated(gate), gated(gate)) as both,
        serving(slow) as first,
        serving(fast) as second,
        running(tmp_path, both, [first, second], policy=policy) as scheduler,
    ):
        instances = await run_together(scheduler, gate, 6)
        placed = [instance["outstanding"] for instance in instances]
        asked = {
            "predicted_latency": "prediction",
            "slo": "prediction",
            "infaas": "load",
            "llumnix_minus": "load",
        }
        if policy in asked:
            assert placed == [0, 6]  # the scripted predictions never change
        elif policy == "random":
            assert sum(placed) == 6
        else:
            assert placed == [3, 3]
        assert set(fast.asked) == ({asked[policy]} if policy in asked else set())
        assert set(fast.externality) <= {policy == "slo"}
        assert set(fast.with_quantiles) <= {False}
        # Reservations are made under every policy.
        await until(lambda: len(slow.reserved) + len(fast.reserved) == 6)
        assert (await scheduler.status())["policy"] == policy
        response = await scheduler.complete()
        assert response.headers["x-foretell-policy"] == policy
        await scheduler.until_metric("foretell_requests_total", 7, policy=policy)


async def test_what_the_others_would_pay_decides(tmp_path: Path) -> None:
    dear, cheap = Predictor(e2e_s=1.0), Predictor(e2e_s=3.0)
    dear.predicted.added_e2e_s, cheap.predicted.added_e2e_s = 9.0, 2.0
    dear.predicted.added_ttft_s = cheap.predicted.added_ttft_s = 0.0
    async with (
        engines(answer, answer) as both,
        serving(dear) as first,
        serving(cheap) as second,
        running(tmp_path, both, [first, second], policy="slo") as scheduler,
    ):
        headers = (await scheduler.complete()).headers
        assert headers["x-foretell-instance"] == "engine-1"
        assert 3.0 <= float(headers["x-foretell-predicted-e2e-s"]) < 5.0  # its own only
        assert dear.externality == cheap.externality == [True]


async def test_dispatches_are_remembered_for_a_minute_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.placement.instances.QPM_WINDOW_S", 0.0)
    async with (
        engines(answer, answer) as both,
        running(tmp_path, both, policy="min_qpm") as scheduler,
    ):
        for _ in range(12):
            await scheduler.complete()
        # With no dispatch remembered all choices are ties, which the seeded draws decide.
        totals = [i["dispatched_total"] for i in (await scheduler.status())["instances"]]
        assert sum(totals) == 12
        assert totals != [6, 6]
