"""An engine that cannot serve a request is no candidate, and one that refuses is not avoided."""

import json
from pathlib import Path
from typing import Any

import pytest
from engines import MODEL, WHOLE, Behaviour, Engine, Exchange, answer, engines
from schedulers import Scheduler, running, until

FOREVER_S = 1000.0
SMALL, LARGE = 100, 100_000


def error(code: int, message: str, param: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "code": code, "param": param}}).encode()


TOO_LONG = error(400, f"This model's maximum context length is {SMALL} tokens. However, ...")
NO_IMAGES = error(400, "At most 0 image(s) may be provided in one prompt.")
NO_MODEL = error(404, "The model `adapter` does not exist.")


def long_for(engine: Engine, length: int) -> None:
    engine.models = {"data": [{"id": MODEL, "max_model_len": length}]}


def refusing(code: int, body: bytes, field: str = "messages") -> Behaviour:
    """Refuse requests with `field`, as an engine that cannot serve them."""

    async def behaviour(exchange: Exchange) -> None:
        if field in exchange.received.body:
            await exchange.whole(code, body)
        else:
            await answer(exchange)

    return behaviour


async def used(scheduler: Scheduler, count: int, **fields: Any) -> list[tuple[int, str]]:
    found = []
    for _ in range(count):
        response = await scheduler.complete(**fields)
        found.append((response.status_code, response.headers["x-foretell-instance"]))
    return found


@pytest.mark.parametrize("policy", ["round_robin", "least_outstanding"])
async def test_what_is_too_long_for_an_engine_goes_to_a_longer_one(
    tmp_path: Path, policy: str
) -> None:
    async with engines(answer, answer) as (small, large):
        long_for(small, SMALL)
        long_for(large, LARGE)
        async with running(tmp_path, [small, large], policy=policy) as scheduler:
            ids = list(range(SMALL))
            assert await used(scheduler, 6, prompt=ids) == [(200, "engine-1")] * 6
            assert await used(scheduler, 6, max_tokens=SMALL) == [(200, "engine-1")] * 6
            # What fits everywhere may go anywhere, also if its prompt is truncated to fit.
            if policy == "round_robin":
                for fields in ({"prompt": ids[:50]}, {"prompt": ids, "truncate_prompt_tokens": 9}):
                    assert len(set(await used(scheduler, 6, **fields))) == 2
            # If no engine's context is long enough, the engine with the longest decides.
            too_long = list(range(LARGE))
            assert await used(scheduler, 2, prompt=too_long) == [(200, "engine-1")] * 2
            # If the large engine fails, the request must not go to the small one.
            await large.stop()
            await until(lambda: large.port > 0)
            assert await scheduler.metric("foretell_retries_total") == 0


async def test_a_prompt_that_was_longer_than_thought_goes_on_to_a_longer_engine(
    tmp_path: Path,
) -> None:
    """A wrong estimate of the prompt costs one refused attempt, and no engine is avoided for it."""
    async with engines(refusing(400, TOO_LONG, "prompt"), answer) as (small, large):
        long_for(small, SMALL)
        long_for(large, LARGE)
        async with running(tmp_path, [small, large], health_interval_s=FOREVER_S) as scheduler:
            assert await used(scheduler, 4) == [(200, "engine-1")] * 4
            assert len(small.received) > 1  # other requests do not avoid it
            assert await scheduler.metric("foretell_retries_total") == 0
            large.behaviour = refusing(400, TOO_LONG, "prompt")
            sent = len(large.received)
            response = await scheduler.complete()
            assert (response.status_code, response.content) == (400, TOO_LONG)
            assert len(large.received) <= sent + 1


async def test_the_longest_engines_refusal_is_final(tmp_path: Path) -> None:
    async with engines(*[refusing(400, TOO_LONG, "prompt")] * 3) as three:
        for engine in three:
            long_for(engine, SMALL)
        async with running(tmp_path, three, health_interval_s=FOREVER_S) as scheduler:
            response = await scheduler.complete()
            assert (response.status_code, response.content) == (400, TOO_LONG)
            assert sum(len(engine.received) for engine in three) == 1


def picture() -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    return {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}


async def test_pictures_go_to_an_engine_that_takes_them(tmp_path: Path) -> None:
    async with (
        engines(refusing(400, NO_IMAGES), refusing(400, NO_IMAGES), answer) as three,
        running(tmp_path, three, health_interval_s=FOREVER_S) as scheduler,
    ):
        for _ in range(6):
            response = await scheduler.client.post("/v1/chat/completions", json=picture())
            assert (response.status_code, response.content) == (200, WHOLE)
        refused = [len(engine.received) for engine in three[:2]]
        assert max(refused) <= 1  # each refuses once
        assert {name for _, name in await used(scheduler, 3)} == {f"engine-{i}" for i in range(3)}
        assert await scheduler.metric("foretell_retries_total") == 0
        three[2].behaviour = refusing(400, NO_IMAGES)
        response = await scheduler.client.post("/v1/chat/completions", json=picture())
        assert (response.status_code, response.content) == (400, NO_IMAGES)
        await scheduler.until_idle()


async def test_an_engine_that_has_lost_an_adapter_is_asked_what_it_serves(tmp_path: Path) -> None:
    async with engines(answer, answer) as both:
        for engine in both:
            engine.models = {"data": [{"id": MODEL}, {"id": "adapter"}]}
        async with running(tmp_path, both, health_interval_s=0.2) as scheduler:
            both[0].behaviour = refusing(404, NO_MODEL, "prompt")
            both[0].models = {"data": [{"id": MODEL}]}
            assert await used(scheduler, 4, model="adapter") == [(200, "engine-1")] * 4
            assert len(both[0].received) <= 1
            assert await scheduler.metric("foretell_retries_total") == 0
            both[0].behaviour = answer
            assert len(set(await used(scheduler, 4))) == 2


def keeping(name: str, *, own_ids: bool = False) -> Behaviour:
    """Answer as an engine of the Responses API that keeps its responses."""
    kept = set[str]()

    async def behaviour(exchange: Exchange) -> None:
        body = exchange.received.body
        previous = body.get("previous_response_id")
        if previous and previous not in kept:
            text = f"Response with id '{previous}' not found."
            await exchange.whole(404, error(404, text, "response_id"))
            return
        made = f"{name}_{len(kept)}" if own_ids else body["request_id"]
        kept.add(made)
        response = {"id": made, "object": "response", "status": "completed", "output": []}
        if body.get("stream"):
            await exchange.head(200, "text/event-stream")
            event = {"type": "response.completed", "response": response}
            await exchange.chunk(b"event: response.completed\n")
            await exchange.chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
            await exchange.chunk(b"")
        else:
            await exchange.whole(200, json.dumps(response).encode())

    return behaviour


async def respond(scheduler: Scheduler, previous: str | None, *, stream: bool) -> tuple[int, str]:
    body = {"model": MODEL, "input": "hi", "stream": stream, "previous_response_id": previous}
    response = await scheduler.client.post("/v1/responses", json=body)
    if response.status_code != 200:
        return response.status_code, ""
    text = response.text.partition("data: ")[2] if stream else response.text
    found = json.loads(text)
    return 200, (found["response"] if stream else found)["id"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("own_ids", [False, True])
async def test_what_follows_a_response_goes_where_it_is_kept(
    tmp_path: Path, own_ids: bool, stream: bool
) -> None:
    five = [keeping(f"resp_{i}", own_ids=own_ids) for i in range(5)]
    other = tmp_path / "other"
    other.mkdir()
    async with (
        engines(*five) as behind,
        running(tmp_path, behind, health_interval_s=FOREVER_S) as scheduler,
        running(other, behind, health_interval_s=FOREVER_S) as replica,
    ):
        last: list[str | None] = [None] * 7
        for _ in range(4):
            for number, previous in enumerate(last):
                code, last[number] = await respond(scheduler, previous, stream=stream)
                assert code == 200
        assert sum(len(engine.received) for engine in behind) == 4 * 7  # one attempt each
        for previous in last:
            assert (await respond(replica, previous, stream=stream))[0] == 200
        asked = sum(len(engine.received) for engine in behind)
        assert asked == 5 * 7 or own_ids
        for each in (scheduler, replica):
            assert await each.metric("foretell_retries_total") == 0


async def test_a_response_that_nobody_keeps_is_nobodys_failure(tmp_path: Path) -> None:
    async with (
        engines(*[keeping(f"{i}") for i in range(5)]) as behind,
        running(tmp_path, behind, health_interval_s=FOREVER_S) as scheduler,
    ):
        for unknown in ("nobody's", "resp_0000000000_" + "0" * 32):
            body = {"model": MODEL, "input": "hi", "previous_response_id": unknown}
            response = await scheduler.client.post("/v1/responses", json=body)
            assert response.status_code == 404
            assert "not found" in response.json()["error"]["message"]
        assert await scheduler.metric("foretell_retries_total") == 0
        answered = {(await respond(scheduler, None, stream=False))[0] for _ in range(5)}
        assert answered == {200}
        assert all(len(engine.received) == 3 for engine in behind)


async def test_an_id_of_the_clients_own_is_the_clients(tmp_path: Path) -> None:
    async with (
        engines(keeping("a")) as (engine,),
        running(tmp_path, [engine], health_interval_s=FOREVER_S) as scheduler,
    ):
        body = {"model": MODEL, "input": "hi", "request_id": "resp_mine"}
        assert (await scheduler.client.post("/v1/responses", json=body)).json()["id"] == "resp_mine"


async def test_an_id_that_a_tenant_chose_is_replaced_so_that_no_replica_tells_others(
    tmp_path: Path,
) -> None:
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    other = tmp_path / "other"
    other.mkdir()
    known = {"api_keys": "one,two", "headers": one, "health_interval_s": FOREVER_S}
    async with (
        engines(keeping("a")) as behind,
        running(tmp_path, behind, **known) as scheduler,
        running(other, behind, **known) as replica,
    ):
        body = {"model": MODEL, "input": "hi", "request_id": "resp_1"}
        name = (await scheduler.client.post("/v1/responses", json=body)).json()["id"]
        assert name != "resp_1"
        assert (await respond(replica, name, stream=False))[0] == 200
        follows = {"model": MODEL, "input": "hi", "previous_response_id": name}
        answer = await replica.client.post("/v1/responses", json=follows, headers=two)
        assert answer.status_code == 404


def stored_at(*names: str) -> Behaviour:
    """Answer as an engine that keeps exactly these responses."""

    async def behaviour(exchange: Exchange) -> None:
        received = exchange.received
        name = received.path.partition("?")[0].split("/")[3]
        code = 200 if name in names else 404
        text = json.dumps({"id": name, "asked": [received.method, received.path]})
        await exchange.whole(code, text.encode() if code == 200 else error(404, "not found"))

    return behaviour


@pytest.mark.parametrize(
    ("method", "rest"),
    [("GET", ""), ("GET", "?starting_after=3"), ("DELETE", ""), ("POST", "/cancel")],
)
async def test_a_response_is_read_and_cancelled_where_it_is_kept(
    tmp_path: Path, method: str, rest: str
) -> None:
    five = [keeping(f"resp_{i}", own_ids=False) for i in range(5)]
    other = tmp_path / "other"
    other.mkdir()
    async with (
        engines(*five) as behind,
        running(tmp_path, behind, health_interval_s=FOREVER_S) as scheduler,
        running(other, behind, health_interval_s=FOREVER_S) as replica,
    ):
        kept: dict[str, int] = {}
        for _ in range(5):
            before = [len(each.received) for each in behind]
            _, name = await respond(scheduler, None, stream=False)
            after = [len(each.received) for each in behind]
            kept[name] = next(i for i in range(5) if after[i] > before[i])
        theirs = "resp_of_the_engines_own"
        for number, engine in enumerate(behind):
            mine = [name for name, where in kept.items() if where == number]
            engine.behaviour = stored_at(*mine, *([theirs] if number == 3 else []))
            engine.received.clear()
        for each in (scheduler, replica):
            for name in (*kept, theirs):
                response = await each.client.request(method, f"/v1/responses/{name}{rest}")
                asked = {"id": name, "asked": [method, f"/v1/responses/{name}{rest}"]}
                assert (response.status_code, response.json()) == (200, asked)
        assert all(
            "authorization" not in got.headers and got.raw == b""
            for each in behind
            for got in each.received
        )
        asked_of = {name: [len(each.received) for each in behind] for name in kept}
        assert sum(len(each.received) for each in behind) <= 2 * (len(kept) + 5), asked_of
        unknown = await scheduler.client.request(method, f"/v1/responses/resp_nobodys{rest}")
        assert (unknown.status_code, unknown.content) == (404, error(404, "not found"))
        head = await scheduler.client.head(f"/v1/responses/{theirs}")
        assert (head.status_code, head.content) == (200, b"")
        wrong = await scheduler.client.put(f"/v1/responses/{theirs}")
        assert wrong.status_code == 405
        for engine in behind:
            await engine.stop()
        gone = await scheduler.client.request(method, f"/v1/responses/{next(iter(kept))}{rest}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "no_instance")


@pytest.mark.parametrize("own_ids", [False, True])
async def test_a_response_is_its_tenants_alone(tmp_path: Path, own_ids: bool) -> None:
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    async with (
        engines(keeping("a", own_ids=own_ids)) as (engine,),
        running(
            tmp_path, [engine], api_keys="one,two", headers=one, health_interval_s=FOREVER_S
        ) as scheduler,
    ):
        _, name = await respond(scheduler, None, stream=False)
        engine.received.clear()
        follows = {"model": MODEL, "input": "hi", "previous_response_id": name}
        for method, path, body in (
            ("GET", f"/v1/responses/{name}", None),
            ("DELETE", f"/v1/responses/{name}", None),
            ("POST", f"/v1/responses/{name}/cancel", None),
            ("POST", "/v1/responses", follows),
        ):
            answer = await scheduler.client.request(method, path, json=body, headers=two)
            assert answer.status_code == 404
            assert "not found" in answer.json()["error"]["message"]
        assert not engine.received
        assert (await respond(scheduler, name, stream=False))[0] == 200
        engine.behaviour = stored_at(name)
        assert (await scheduler.client.get(f"/v1/responses/{name}")).status_code == 200
