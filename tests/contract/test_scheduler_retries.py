"""Before the first token, every failure of an engine is retried without the client noticing."""

import asyncio
import json
from pathlib import Path

import pytest
from engines import (
    EVENTS,
    STREAM,
    WHOLE,
    Behaviour,
    Engine,
    Exchange,
    answer,
    break_after,
    break_within_the_body,
    break_within_the_first_event,
    close_after_headers,
    close_before_headers,
    end_without_a_byte,
    engines,
    error_event,
    garbage,
    gated,
    hang,
    hang_after_headers,
    status,
)
from schedulers import Scheduler, running, until
from scripted_peers import Predictor, serving


async def html_stream(exchange: Exchange) -> None:
    await exchange.head(200, "text/html")
    await exchange.chunk(b"<html>\n<body>Sign in</body>\n</html>\n")
    await exchange.chunk(b"")


async def truncated_event(exchange: Exchange) -> None:
    await exchange.head(200, "text/event-stream")
    await exchange.chunk(EVENTS[0][:40] + b"\n\n")
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.chunk(b"")


PATIENT_S = 1000.0
FOREVER_S = 1000.0  # between health probes, so that no probe changes what a request found out

EVERY_KIND = {
    "close_before_headers": close_before_headers,
    "http_500": status(500),
    "http_503": status(503),
    "http_502_html": status(502, b"<html>"),
    "http_401": status(401),
    "http_403": status(403),
    "http_404": status(404),
    "http_429": status(429),
    "http_307": status(307, b""),
    "html": status(200, b"<html><body>Sign in</body></html>"),
    "html_error": status(400, b"<html>"),
    "truncated_json": status(200, WHOLE[:-30]),
    "garbage": garbage,
    "break_within_the_body": break_within_the_body,
}
STREAMED_KINDS = {
    **EVERY_KIND,
    "close_after_headers": close_after_headers,
    "end_without_a_byte": end_without_a_byte,
    "break_within_the_first_event": break_within_the_first_event,
    "error_event": error_event,
    "html_stream": html_stream,
    "truncated_event": truncated_event,
}


async def asked_of_both(scheduler: Scheduler, *, stream: bool) -> None:
    """Send one request to each engine in turn, also the bad one; both must get a perfect answer."""
    for _ in range(2):
        response = await scheduler.complete(stream=stream)
        assert response.status_code == 200
        assert response.content == (STREAM if stream else WHOLE)
        assert response.headers["x-foretell-instance"] == "engine-1"


async def check_repaired(tmp_path: Path, behaviour: Behaviour, *, stream: bool) -> None:
    async with (
        engines(behaviour, answer) as both,
        running(tmp_path, both, health_interval_s=FOREVER_S) as scheduler,
    ):
        await asked_of_both(scheduler, stream=stream)
        bad, good = both
        assert len(bad.received) == 1  # and from then on it is avoided
        assert len(good.received) == 2
        assert await scheduler.metric("foretell_retries_total", instance_id="engine-0") == 1
        assert await scheduler.metric("foretell_requests_total") == 2
        assert await scheduler.metric("foretell_requests_total", status="200") == 2
        await scheduler.until_metric("foretell_e2e_seconds_count", 2, instance_id="engine-1")
        assert await scheduler.metric("foretell_e2e_seconds_count") == 2
        await scheduler.until_idle()


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_an_unstreamed_answer_is_repaired(tmp_path: Path, kind: str) -> None:
    await check_repaired(tmp_path, EVERY_KIND[kind], stream=False)


@pytest.mark.parametrize("kind", STREAMED_KINDS)
async def test_a_stream_is_repaired(tmp_path: Path, kind: str) -> None:
    await check_repaired(tmp_path, STREAMED_KINDS[kind], stream=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_connection_is_repaired(tmp_path: Path, stream: bool) -> None:
    async with (
        engines(answer, answer) as both,
        running(tmp_path, both, health_interval_s=FOREVER_S) as scheduler,
    ):
        await both[0].stop()
        await asked_of_both(scheduler, stream=stream)
        assert await scheduler.metric("foretell_retries_total", instance_id="engine-0") == 1


@pytest.mark.parametrize("behaviour", [hang, hang_after_headers])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_silent_engine_is_left_when_its_time_is_up(
    tmp_path: Path, behaviour: Behaviour, stream: bool
) -> None:
    async with (
        engines(behaviour, answer) as both,
        running(tmp_path, both, health_interval_s=FOREVER_S, request_timeout_s=1.0) as scheduler,
    ):
        await asked_of_both(scheduler, stream=stream)
        reason = await scheduler.metric("foretell_retries_total", reason="timeout")
        assert reason == 1
        await until(both[0].received[0].gone.is_set)


@pytest.mark.parametrize("behaviour", [hang, hang_after_headers])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_leaves_an_engine_whose_health_stops(
    tmp_path: Path, behaviour: Behaviour, stream: bool
) -> None:
    """The whole engine hangs: it accepts connections and never answers."""
    async with (
        engines(behaviour, answer) as (bad, good),
        running(tmp_path, [bad, good], health_timeout_s=0.1) as scheduler,
    ):
        good.health_status = 500  # so that the request goes to the bad one
        await scheduler.until(lambda s: not s["instances"][1]["healthy"])
        work = asyncio.create_task(scheduler.complete(stream=stream))
        await until(lambda: len(bad.received) == 1)
        good.health_status = 200
        await scheduler.until(lambda s: s["instances"][1]["healthy"])
        assert not work.done()
        bad.health_status = None
        response = await work
        assert response.content == (STREAM if stream else WHOLE)
        assert response.headers["x-foretell-instance"] == "engine-1"
        assert await scheduler.metric("foretell_retries_total", reason="engine_down") == 1
        await until(bad.received[0].gone.is_set)
        await scheduler.until_idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_attempts_are_bounded_and_their_end_is_a_503(tmp_path: Path, stream: bool) -> None:
    bad = status(500)
    async with (
        engines(bad, bad, bad, bad) as four,
        running(tmp_path, four, max_attempts=3, health_interval_s=FOREVER_S) as scheduler,
    ):
        response = await scheduler.complete(stream=stream)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_failed"
        assert int(response.headers["retry-after"]) > 0
        assert response.headers["x-request-id"]
        assert sorted(len(engine.received) for engine in four) == [0, 1, 1, 1]
        assert await scheduler.metric("foretell_retries_total") == 3
        assert await scheduler.metric("foretell_requests_total", status="503") == 1
        assert await scheduler.metric("foretell_requests_total") == 1
        await scheduler.until_idle()


async def test_a_request_that_fails_everywhere_does_not_close_the_cluster(tmp_path: Path) -> None:
    """A request that makes every engine fail must not affect others, even before the next probe."""

    async def poisoned(exchange: Exchange) -> None:
        bad = exchange.received.body["prompt"] == "poison"
        await (status(500) if bad else answer)(exchange)

    async with (
        engines(poisoned, poisoned) as both,
        running(tmp_path, both, health_interval_s=FOREVER_S) as scheduler,
    ):
        assert (await scheduler.complete(prompt="poison")).status_code == 503
        for _ in range(4):
            assert (await scheduler.complete(prompt="hello")).content == WHOLE


async def test_a_lone_engine_gets_a_second_chance(tmp_path: Path) -> None:
    """One broken connection, as of an idle one that was closed, must not fail the request."""
    async with (
        engines(close_before_headers) as (engine,),
        running(tmp_path, [engine], health_interval_s=FOREVER_S) as scheduler,
    ):
        work = asyncio.create_task(scheduler.complete())
        await until(lambda: len(engine.received) == 1)
        engine.behaviour = answer
        assert (await work).content == WHOLE


async def test_a_suspected_engine_is_back_with_its_next_good_probe(tmp_path: Path) -> None:
    async with engines(status(500), answer) as both, running(tmp_path, both) as scheduler:
        await asked_of_both(scheduler, stream=False)
        both[0].behaviour = answer
        probes = both[0].probes
        await until(lambda: both[0].probes >= probes + 2)
        used = {(await scheduler.complete()).headers["x-foretell-instance"] for _ in range(2)}
        assert used == {"engine-0", "engine-1"}


async def test_every_attempt_is_reserved_and_released_where_it_was_made(tmp_path: Path) -> None:
    bad_sidecar, good_sidecar = Predictor(e2e_s=1.0), Predictor(e2e_s=9.0)
    log = tmp_path / "requests.jsonl"
    async with (
        engines(status(500), answer) as both,
        serving(bad_sidecar) as first,
        serving(good_sidecar) as second,
        running(
            tmp_path,
            both,
            [first, second],
            policy="predicted_latency",
            health_interval_s=FOREVER_S,
            request_log=str(log),
        ) as scheduler,
    ):
        response = await scheduler.complete(headers={"x-request-id": "r1"})
        assert response.headers["x-foretell-predicted-e2e-s"] == "9.0000"
        await until(lambda: bool(good_sidecar.ended and bad_sidecar.ended))
        for sidecar in (bad_sidecar, good_sidecar):
            assert [spec.request_id for spec in sidecar.reserved] == sidecar.ended
        # Each attempt has its own id: releasing one must not release the other's reservation.
        assert bad_sidecar.ended != good_sidecar.ended
        await until(lambda: len(log.read_text().splitlines()) == 2)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert {line["request_id"] for line in lines} == {"r1"}
        by_instance = {line["instance_id"]: (line["status"], line["finished"]) for line in lines}
        assert by_instance == {"engine-0": (500, False), "engine-1": (200, True)}


async def test_after_the_first_token_nothing_is_repeated(tmp_path: Path) -> None:
    event = b"data: {}\n\n"
    async with (
        engines(break_after(event), break_after(event)) as both,
        running(tmp_path, both, health_interval_s=FOREVER_S) as scheduler,
    ):
        await scheduler.complete(stream=True)
        assert sum(len(engine.received) for engine in both) == 1


async def test_an_engine_that_restarts_is_found_again(tmp_path: Path) -> None:
    engine = Engine("engine-0")
    await engine.start()
    async with running(tmp_path, [engine]) as scheduler:
        await engine.stop()
        await scheduler.until(lambda s: not s["instances"][0]["healthy"])
        assert (await scheduler.client.get("/ready")).status_code == 503
        response = await scheduler.complete()
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "no_instance"
        await engine.start()
        await scheduler.until(lambda s: s["instances"][0]["healthy"])
        assert (await scheduler.complete()).content == WHOLE
    await engine.stop()


async def test_a_hanging_engine_delays_no_news_of_the_others(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with (
        engines(gated(gate), answer) as (hanging, other),
        running(tmp_path, [hanging, other], health_timeout_s=60) as scheduler,
    ):
        hanging.health_status = None
        probes = other.probes
        await until(lambda: other.probes >= probes + 5)
        other.health_status = 500
        await scheduler.until(lambda s: not s["instances"][1]["healthy"])
        assert (await scheduler.instance("engine-0"))["healthy"]  # not yet known to hang


async def test_requests_wait_for_an_engine_as_long_as_they_may(tmp_path: Path) -> None:
    """For the first engine after the start, and for one that is down for a while."""
    async with engines(answer) as (engine,):
        engine.health_status = 500
        async with running(tmp_path, [engine], all_up=False, engine_wait_s=PATIENT_S) as scheduler:
            early = [asyncio.create_task(scheduler.complete(stream=s)) for s in (False, True)]
            await scheduler.until(lambda s: s["in_progress"] == 2)
            engine.health_status = 200
            assert [(await each).content for each in early] == [WHOLE, STREAM]
            await engine.stop()
            await scheduler.until(lambda s: not s["instances"][0]["healthy"])
            late = asyncio.create_task(scheduler.complete())
            await scheduler.until(lambda s: s["in_progress"] == 1)
            await engine.start()
            assert (await late).content == WHOLE
            await scheduler.until_idle()


async def test_a_hung_engine_is_left_after_a_few_times_its_predicted_ttft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its health is good, and it answered before; an engine that is only busy is not left."""
    monkeypatch.setattr("foretell.placement.silence.LEAST_S", 0.2)
    hung, other = Predictor(e2e_s=0.1), Predictor(e2e_s=9.0)
    async with (
        engines(answer, answer) as both,
        serving(hung) as first,
        serving(other) as second,
        running(tmp_path, both, [first, second], policy="predicted_latency") as scheduler,
    ):
        warm = await scheduler.complete(stream=True)
        assert warm.headers["x-foretell-instance"] == "engine-0"
        both[0].behaviour = hang
        response = await scheduler.complete(stream=True)
        assert response.content == STREAM
        assert response.headers["x-foretell-instance"] == "engine-1"
        assert await scheduler.metric("foretell_retries_total", reason="silent") == 1
        await until(both[0].received[1].gone.is_set)
