"""Requests with targets: outcomes, refusals, and service without predictions."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import MODEL, Exchange, answer, close_before_headers, engines
from schedulers import Scheduler, running, until
from scripted_peers import Predictor, serving

from foretell.model import Load

TTFT, TPOT = "x-foretell-ttft-target-ms", "x-foretell-tpot-target-ms"
REJECT = {"x-foretell-when-late": "reject"}
A_DAY = "86400000"


def refusal_of(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 429, response.text
    error: dict[str, Any] = response.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "slo_unattainable")
    return error


async def outcomes(scheduler: Scheduler, policy: str = "slo") -> dict[str, float]:
    name = "foretell_slo_requests_total"
    return {
        outcome: await scheduler.metric(name, model_name=MODEL, policy=policy, outcome=outcome)
        for outcome in ("met", "missed", "rejected")
    }


async def test_who_cannot_be_in_time_is_told_at_once_if_it_wants(tmp_path: Path) -> None:
    log, predictor = tmp_path / "log", Predictor(e2e_s=50.0)  # TTFT 5 s
    async with (
        engines(answer) as (engine,),
        serving(predictor) as address,
        running(tmp_path, [engine], [address], policy="slo", request_log=str(log)) as scheduler,
    ):
        late = await scheduler.complete(headers={TTFT: "2000", **REJECT})
        error = refusal_of(late)
        assert "the target is 2000 ms" in error["message"]
        assert 3 <= int(late.headers["retry-after"]) <= 6
        assert late.headers["x-request-id"]
        assert engine.received == []
        assert await outcomes(scheduler) == {"met": 0, "missed": 0, "rejected": 1}

        in_time = await scheduler.complete(headers={TTFT: A_DAY, **REJECT}, stream=True)
        makes_way = asyncio.create_task(scheduler.complete(headers={TTFT: "2000"}, stream=True))
        await scheduler.until_metric("foretell_requests_late", 1)
        untargeted = await scheduler.complete(headers=REJECT, stream=True)
        assert not makes_way.done()
        predictor.predicted.load = Load(0, 0, 0, 0, 1056, 0, 48)
        patient = await makes_way
        assert [r.status_code for r in (in_time, patient, untargeted)] == [200] * 3
        assert predictor.with_quantiles == [True, True, True, False, True]
        assert await scheduler.metric("foretell_requests_late") == 0
        await until(lambda: len(log.read_text().splitlines()) == 4)
        assert (await scheduler.status())["in_progress"] == 0
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert (lines[0]["status"], lines[0]["slo_outcome"]) == (429, "rejected")
    assert (lines[0]["ttft_target_s"], lines[0]["tpot_target_s"]) == (2.0, None)
    assert lines[0]["predicted_ttft_s"] >= 5.0
    by_id = {line["request_id"]: line for line in lines}
    assert by_id[in_time.headers["x-request-id"]]["slo_outcome"] == "met"
    last = by_id[untargeted.headers["x-request-id"]]
    assert (last["ttft_target_s"], last["slo_outcome"]) == (None, None)


async def test_one_instance_that_may_be_in_time_is_enough(tmp_path: Path) -> None:
    hopeful = Predictor(e2e_s=50.0)
    hopeful.predicted.ttft_quantiles = ((0.1, 0.001), (0.9, 9.0))
    async with (
        engines(answer, answer) as made,
        serving(Predictor(e2e_s=50.0)) as slow,
        serving(hopeful) as hoping,
        running(tmp_path, made, [slow, hoping], policy="slo") as scheduler,
    ):
        response = await scheduler.complete(headers={TTFT: "2000", **REJECT})
        assert response.status_code == 200


async def test_nobody_is_refused_where_nobody_predicts(tmp_path: Path) -> None:
    async with engines(answer) as (engine,):
        for policy in ("slo", "round_robin"):
            async with running(
                tmp_path, [engine], policy=policy, ttft_target_ms=60_000, late_requests="reject"
            ) as scheduler:
                assert (await scheduler.complete(stream=True)).status_code == 200
                await scheduler.until_metric("foretell_slo_requests_total", 1)
                assert (await outcomes(scheduler, policy))["met"] == 1


async def test_settings_hold_for_all_and_headers_win(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        serving(Predictor(e2e_s=50.0)) as address,
        running(
            tmp_path,
            [engine],
            [address],
            policy="predicted_latency",
            ttft_target_ms=2000,
            late_requests="reject",
        ) as scheduler,
    ):
        refusal_of(await scheduler.complete())
        for headers in ({TTFT: "0"}, {TTFT: A_DAY}, {"x-foretell-when-late": "serve"}):
            assert (await scheduler.complete(headers=headers)).status_code == 200


async def test_who_was_admitted_is_not_turned_away_after_a_failure(tmp_path: Path) -> None:
    sidecars = [Predictor(e2e_s=1.0), Predictor(e2e_s=50.0)]
    async with (
        engines(close_before_headers, answer) as made,
        serving(sidecars[0]) as quick,
        serving(sidecars[1]) as slow,
        running(tmp_path, made, [quick, slow], policy="slo") as scheduler,
    ):
        response = await scheduler.complete(headers={TTFT: "2000", **REJECT})
        assert response.status_code == 200
        assert response.headers["x-foretell-instance"] == "engine-1"


async def test_outcomes_are_what_happened(tmp_path: Path) -> None:
    async def slowly(exchange: Exchange) -> None:
        await asyncio.sleep(0.05)
        await answer(exchange)

    async with (
        engines(slowly) as (engine,),
        running(tmp_path, [engine], policy="round_robin") as scheduler,
    ):
        cases = [({TTFT: "40"}, "missed"), ({TTFT: A_DAY, TPOT: A_DAY}, "met")]
        cases += [({TTFT: A_DAY, TPOT: "0.000001"}, "missed"), ({}, "")]
        for number, (headers, _) in enumerate(cases, 1):
            response = await scheduler.complete(headers=headers, stream=True)
            assert response.status_code == 200
            await scheduler.until_metric("foretell_e2e_seconds_count", number)
        assert await outcomes(scheduler, "round_robin") == {"met": 1, "missed": 2, "rejected": 0}


@pytest.mark.parametrize(
    ("header", "text"),
    [(TTFT, "soon"), (TPOT, "-1"), ("x-foretell-when-late", "drop")],
)
async def test_a_bad_header_is_named_and_no_engine_hears_of_it(
    tmp_path: Path, header: str, text: str
) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        response = await scheduler.complete(headers={header: text})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == header
        assert engine.received == []
        good = await scheduler.complete(headers={TTFT: "500", **REJECT})
        assert good.status_code == 200
        assert not any(name.startswith("x-foretell") for name in engine.received[0].headers)
