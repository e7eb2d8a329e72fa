"""Clients of a real Envoy whose endpoint picker is a scheduler."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
from engines import (
    EVENTS,
    MODEL,
    WHOLE,
    Engine,
    answer,
    close_before_headers,
    engines,
    gated,
    hang,
    status,
)
from envoys import body, front, started
from schedulers import WAIT_S, instances_json, until

from foretell.services.process.children import Child
from tests.processes import descendants

COMPLETIONS = "/v1/completions"


def code_of(response: httpx.Response) -> str:
    return response.json()["error"]["code"]


async def test_a_whole_answer_comes_through_and_gives_its_lease_back(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), front(tmp_path, [engine]) as envoy:
        response = await envoy.complete(max_tokens=20, headers={"x-request-id": "mine"})
        assert (response.status_code, response.content) == (200, WHOLE)
        assert response.headers["x-foretell-instance"] == "engine-0"
        assert response.headers["x-request-id"] == "mine"
        assert not any(name.startswith("x-gateway") for name in response.headers)
        (received,) = engine.received
        assert received.body["vllm_xargs"]["foretell_predicted_tokens"] > 0
        assert received.headers["x-request-id"] == "mine"
        await envoy.scheduler.until_idle()
        labels = {"instance_id": "engine-0", "status": "200", "model_name": MODEL}
        assert await envoy.scheduler.metric("foretell_requests_total", **labels) == 1


async def test_a_stream_comes_as_the_engine_sends_it(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with engines(gated(gate)) as (engine,), front(tmp_path, [engine]) as envoy:
        request = envoy.client.stream("POST", "/v1/completions", content=body(stream=True))
        async with request as response:
            parts = response.aiter_raw()
            assert await anext(parts) == EVENTS[0]
            assert (await envoy.scheduler.instance("engine-0"))["outstanding"] == 1
            gate.set()
            assert b"".join([part async for part in parts]) == b"".join(EVENTS[1:])
        await envoy.scheduler.until_idle()


async def test_what_is_refused_has_the_texts_of_the_endpoint(tmp_path: Path) -> None:
    key = {"authorization": "Bearer secret"}
    changes = {"api_keys": "secret", "max_body_bytes": 1000, "headers": key}
    async with engines(answer) as (engine,), front(tmp_path, [engine], **changes) as envoy:
        for content, headers in (
            (body(), {"authorization": ""}),
            (body(), {"authorization": "Bearer wrong"}),
            (body(model="other"), key),
            ("{", key),
            (body(n=0), key),
            (body(prompt="x" * 2000), key),
            (body(), {**key, "x-slo-ttft-ms": "soon"}),
        ):
            through = await envoy.post(content, headers=headers)
            direct = await envoy.scheduler.client.post(
                "/v1/completions", content=content, headers=headers
            )
            assert (through.status_code, through.json()) == (direct.status_code, direct.json())
            assert through.status_code >= 400
            assert through.headers["content-type"] == "application/json"
        assert not engine.received
        assert (await envoy.client.get("/v1/models", headers=key)).json()["data"][0]["id"] == MODEL
        assert (await envoy.client.get("/v1/models")).status_code == 401
        assert (await envoy.client.get("/metrics")).status_code == 404
        assert (await envoy.client.get("/v1/completions")).status_code == 405


async def test_an_upgrade_that_is_not_served_is_refused_at_once(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), front(tmp_path, [engine]) as envoy:
        wanted = {"connection": "upgrade", "upgrade": "websocket"}
        for path in ("/v1/completions", "/v1/realtime", "/health"):
            response = await envoy.client.get(path, headers=wanted)
            assert 400 <= response.status_code < 500
        assert (await envoy.complete()).status_code == 200
        await envoy.scheduler.until_idle()


async def test_keys_are_exchanged(tmp_path: Path) -> None:
    headers = {"authorization": "Bearer secret", "cookie": "a=b"}
    changes = {"api_keys": "secret", "engine_api_key": "engine-key", "headers": headers}
    async with engines(answer) as (engine,), front(tmp_path, [engine], **changes) as envoy:
        assert (await envoy.complete(headers=headers)).status_code == 200
        (received,) = engine.received
        assert received.headers["authorization"] == "Bearer engine-key"
        assert "cookie" not in received.headers


async def test_a_client_cannot_choose_where_its_request_goes(tmp_path: Path) -> None:
    async with engines(answer, answer) as both, front(tmp_path, both) as envoy:
        for _ in range(4):
            headers = {"x-gateway-destination-endpoint": f"127.0.0.1:{both[0].port}"}
            assert (await envoy.complete(headers=headers)).status_code == 200
        assert [len(engine.received) for engine in both] == [2, 2]
        # A client cannot name an address that is no engine, either.
        headers = {"x-gateway-destination-endpoint": f"127.0.0.1:{envoy.scheduler.port}"}
        answered = await envoy.client.get("/metrics", headers=headers)
        assert answered.status_code == 404


async def test_without_an_engine_it_says_so(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), front(tmp_path, [engine]) as envoy:
        await engine.stop()
        await envoy.scheduler.until(lambda s: not s["instances"][0]["healthy"])
        response = await envoy.complete()
        assert (response.status_code, code_of(response)) == (503, "no_instance")
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert response.headers["x-llm-d-request-dropped-reason"] == "no_instance"


async def test_another_engine_answers_where_the_chosen_one_fails(tmp_path: Path) -> None:
    for behaviour in (close_before_headers, status(500), status(401)):
        async with (
            engines(behaviour, answer) as both,
            front(tmp_path, both) as envoy,
        ):
            for _ in range(4):
                response = await envoy.complete()
                assert (response.status_code, response.content) == (200, WHOLE)
                assert response.headers["x-foretell-instance"] == "engine-1"
            failed = len(both[0].received)  # then it is avoided for as long as an attempt took
            assert 1 <= failed <= 2
            retried = {"instance_id": "engine-0"}
            assert await envoy.scheduler.metric("foretell_retries_total", **retried) == failed
            await envoy.scheduler.until_idle()


async def test_where_all_engines_fail_the_client_is_told(tmp_path: Path) -> None:
    async with engines(close_before_headers, status(500)) as both, front(tmp_path, both) as envoy:
        response = await envoy.complete()
        assert (response.status_code, code_of(response)) == (503, "engine_failed")
        await envoy.scheduler.until_idle()


async def test_a_client_that_leaves_frees_its_engine(tmp_path: Path) -> None:
    async with engines(gated(asyncio.Event())) as (engine,), front(tmp_path, [engine]) as envoy:
        request = envoy.client.stream("POST", "/v1/completions", content=body(stream=True))
        async with request as response:
            await anext(response.aiter_raw())
        await asyncio.wait_for(engine.received[0].gone.wait(), 10)
        await envoy.scheduler.until_idle()


async def test_a_client_that_leaves_before_the_answer_frees_its_engine(tmp_path: Path) -> None:
    async with engines(hang) as (engine,), front(tmp_path, [engine]) as envoy:
        asking = asyncio.create_task(envoy.complete())
        await until(lambda: bool(engine.received))
        asking.cancel()
        await asyncio.wait_for(engine.received[0].gone.wait(), 10)
        await envoy.scheduler.until_idle()
        assert await envoy.scheduler.metric("foretell_requests_total", status="499") == 1


async def test_an_engine_that_dies_in_mid_answer_breaks_the_stream(tmp_path: Path) -> None:
    async with engines(gated(asyncio.Event())) as (engine,), front(tmp_path, [engine]) as envoy:
        request = envoy.client.stream("POST", "/v1/completions", content=body(stream=True))
        try:
            async with request as response:
                parts = response.aiter_raw()
                await anext(parts)
                await engine.stop()
                async for _ in parts:
                    pass
            raise AssertionError("the stream ended as if it were whole")
        except httpx.RemoteProtocolError:
            pass
        await envoy.scheduler.until_idle()


async def test_long_bodies_come_in_many_parts(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), front(tmp_path, [engine]) as envoy:
        for size in (220_000, 3_000_000):
            prompt = "0123456789" * (size // 10)
            assert (await envoy.complete(prompt=prompt)).status_code == 200
            assert engine.received[-1].body["prompt"] == prompt


async def test_a_giant_body_is_refused_before_it_has_come(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        front(tmp_path, [engine], max_body_bytes=4 << 20) as envoy,
    ):
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {envoy.host}\r\n"
        for framing, sends in (
            (f"content-length: {5 << 20}", b""),
            ("transfer-encoding: chunked", (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 65),
        ):
            reader, writer = await asyncio.open_connection(envoy.host, envoy.port)
            writer.write(f"{head}{framing}\r\n\r\n".encode() + sends)
            first = await asyncio.wait_for(reader.readline(), 10)
            assert first.split()[1] == b"413"
            assert b"request_too_large" in await asyncio.wait_for(reader.readuntil(b"}}"), 10)
            writer.close()
        assert not engine.received
        await envoy.scheduler.until_idle()


def scheduler(folder: Path, engines: Sequence[Engine], number: int, policy: str) -> list[str]:
    """The command line of a scheduler process that is a picker."""
    return [
        *(sys.executable, "-m", "foretell.services.scheduler", f"--policy={policy}"),
        f"--instances={instances_json(engines)}",
        f"--picker=unix:{folder}/scheduler-{number}.picker.sock",
    ]


async def until_answered(
    client: httpx.AsyncClient, fits: Callable[[httpx.Response], bool]
) -> httpx.Response:
    """Repeat a request until an answer `fits`; return that answer."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with suppress(httpx.ConnectError):  # Envoy does not serve yet
                found = await client.post("/v1/completions", content=body())
                if fits(found):
                    return found
            await asyncio.sleep(0.05)


@asynccontextmanager
async def two_pickers(
    folder: Path, engine: Engine
) -> AsyncIterator[tuple[httpx.AsyncClient, Child]]:
    """A client of an Envoy that has used both of its pickers, and the first one's process."""
    policies = ("round_robin", "least_outstanding")
    async with started(folder, [engine], replicas=2) as client, AsyncExitStack() as stack:
        children = []
        for i, policy in enumerate(policies):
            command = scheduler(folder, [engine], i, policy)
            child = await Child.spawn("scheduler", command, folder / f"scheduler-{i}.log")
            stack.push_async_callback(child.stop, 0.0)
            children.append(child)
        asked = set[str]()
        while asked < set(policies):
            found = await until_answered(client, lambda found: found.status_code == 200)
            asked.add(found.headers["x-foretell-policy"])
        yield client, children[0]


async def test_a_scheduler_that_has_just_died_costs_no_new_request(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), two_pickers(tmp_path, engine) as (client, child):
        (envoy,) = (pid for pid in descendants(os.getpid()) if is_envoy(pid))
        # When it goes on, Envoy finds requests and the end of a picker's connection together.
        os.kill(envoy, signal.SIGSTOP)
        posts = [asyncio.create_task(client.post(COMPLETIONS, content=body())) for _ in range(12)]
        await asyncio.sleep(0.1)
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        os.kill(envoy, signal.SIGCONT)
        assert {found.status_code for found in await asyncio.gather(*posts)} == {200}
        for _ in range(20):  # Envoy has not noticed yet
            assert (await client.post(COMPLETIONS, content=body())).status_code == 200


async def test_a_scheduler_that_dies_during_a_body_costs_nothing(tmp_path: Path) -> None:
    """Envoy keeps up to 64 KiB of a body for another picker; a longer one is refused as below."""
    killed = asyncio.Event()
    begun = list[str]()

    async def in_two_parts(prompt: str) -> AsyncIterator[bytes]:
        data = body(prompt=prompt).encode()
        yield data[: len(data) // 2]
        begun.append(prompt)
        await killed.wait()
        yield data[len(data) // 2 :]

    async with engines(answer) as (engine,), two_pickers(tmp_path, engine) as (client, child):
        engine.received.clear()
        prompts = [f"{i}" * 20_000 for i in range(8)]
        posts = [
            asyncio.create_task(client.post(COMPLETIONS, content=in_two_parts(prompt)))
            for prompt in prompts
        ]
        await until(lambda: len(begun) == len(prompts))
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        killed.set()
        assert [found.status_code for found in await asyncio.gather(*posts)] == [200] * len(posts)
        assert sorted(each.body["prompt"] for each in engine.received) == prompts


def is_envoy(pid: int) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    return b"envoy" in command.rpartition(b"/")[2]


async def test_while_the_scheduler_is_gone_clients_are_told(tmp_path: Path) -> None:
    async with engines(answer, answer) as both, started(tmp_path, both) as client:
        command = scheduler(tmp_path, both, 0, "round_robin")
        for _ in range(2):
            child = await Child.spawn("scheduler", command, tmp_path / "scheduler.log")
            try:
                await until_answered(client, lambda found: found.status_code == 200)
                os.kill(child.pid, signal.SIGKILL)
                await child.wait()
                response = await until_answered(client, lambda found: found.status_code == 503)
            finally:
                await child.stop(0.0)
            assert code_of(response) == "scheduler_unavailable"
            assert response.headers["content-type"] == "application/json"
            assert response.headers["retry-after"] == "1"
