"""The endpoint picker protocol, spoken by a plain gRPC client in a gateway's place."""

import asyncio
import hashlib
import json
from pathlib import Path

import grpc
import pytest
from engines import answer, engines
from envoy_messages import asked, body_of, endpoint_of
from pickers import PROMPT, picker, process

from foretell.v1 import ext_proc_pb2 as pb


async def test_a_request_is_answered_once_its_body_has_ended(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (scheduler, channel):
        call = process(channel)
        headers, *parts = asked(PROMPT, parts=3)
        await call.write(headers)
        for part in parts[:-1]:
            await call.write(part)
        reading = asyncio.ensure_future(call.read())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reading), 0.2)
        await call.write(parts[-1])
        first = await reading
        where = f"127.0.0.1:{engine.port}"
        assert endpoint_of(first) == where
        lb = first.dynamic_metadata.fields["envoy.lb"].struct_value.fields
        assert lb["x-gateway-destination-endpoint"].string_value == where
        chunk = await call.read()
        sent = json.loads(chunk.request_body.response.body_mutation.streamed_response.body)
        assert sent["vllm_xargs"]["foretell_id"]
        assert (await scheduler.instance("engine-0"))["outstanding"] == 1
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await scheduler.until_idle()


async def test_no_request_is_more_urgent_than_its_key_allows(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"k").hexdigest()
    keys.write_text(json.dumps({"slow": {"sha256": digest, "priority": 5}}))
    body = b'{"model": "test-model", "prompt": "hello", "priority": -100}'
    bearer = {"authorization": "Bearer k"}
    async with (
        engines(answer) as (engine,),
        picker(tmp_path, [engine], api_keys_file=str(keys), headers=bearer) as (_, channel),
    ):
        call = process(channel)
        for message in asked(body, **bearer):
            await call.write(message)
        first = await call.read()
        await call.done_writing()
        options = first.request_headers.response.header_mutation.set_headers
        told = {each.header.key: each.header.raw_value for each in options}
        assert told["x-vllm-priority"] == b"5"


async def test_a_body_that_does_not_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.services.scheduler.envoy.exchange.BODY_DEADLINE_S", 0.05)
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (scheduler, channel):
        call = process(channel)
        headers, part, *_ = asked(PROMPT, parts=3)
        await call.write(headers)
        await call.write(part)
        refused = await call.read()
        assert refused.immediate_response.status.code == 408
        assert await call.read() is grpc.aio.EOF
        await scheduler.until_idle()


async def test_a_length_that_is_certain_is_no_guess(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (scheduler, channel):
        call = process(channel)
        body = b'{"model": "test-model", "prompt": "hello", "max_tokens": 70, "ignore_eos": true}'
        for message in asked(body):
            await call.write(message)
        await call.read()
        chunk = (await call.read()).request_body.response.body_mutation.streamed_response
        assert json.loads(chunk.body)["vllm_xargs"]["foretell_predicted_tokens"] == 70.0
        call.cancel()
        await scheduler.until_idle()


async def test_a_long_body_goes_back_in_small_chunks(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (scheduler, channel):
        prompt = json.dumps({"model": "test-model", "prompt": "x" * 3_000_000}).encode()
        call = process(channel)
        for message in asked(prompt, parts=60):
            await call.write(message)
        await call.read()
        chunks = []
        while not chunks or not chunks[-1].end_of_stream:
            answered = await call.read()
            chunks.append(answered.request_body.response.body_mutation.streamed_response)
        assert max(len(chunk.body) for chunk in chunks) <= 62_000
        assert json.loads(b"".join(chunk.body for chunk in chunks))["prompt"] == "x" * 3_000_000
        call.cancel()
        await scheduler.until_idle()


async def test_bodies_that_are_only_declared_take_no_room(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (scheduler, channel):
        declaring = [process(channel) for _ in range(30)]
        for call in declaring:
            headers, *_ = asked(b"x", **{"content-length": str(48 << 20)})
            await call.write(headers)
        sending = process(channel)
        prompt = json.dumps({"model": "test-model", "prompt": "x" * 3_000_000}).encode()
        for message in asked(prompt, parts=60):
            await sending.write(message)
        assert endpoint_of(await sending.read()) == f"127.0.0.1:{engine.port}"
        for call in (*declaring, sending):
            call.cancel()
        await scheduler.until_idle()


async def test_a_failure_while_looking_for_what_is_kept_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("for this test")

    monkeypatch.setattr("foretell.services.scheduler.proxy.StoredResponses.keepers", fail)
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (_, channel):
        headers, *_ = asked(b"x", **{":method": "GET", ":path": f"/v1/responses/resp_{'0' * 32}"})
        headers.request_headers.end_of_stream = True
        call = process(channel)
        await call.write(headers)
        answered = await call.read()
        assert answered.immediate_response.status.code == 500
        assert body_of(answered)["error"]["type"]
        assert await call.read() is grpc.aio.EOF


async def test_what_is_kept_is_asked_for_where_it_is_kept(tmp_path: Path) -> None:
    async with engines(*[answer] * 4) as four, picker(tmp_path, four) as (scheduler, channel):
        for number, engine in enumerate(four):
            names = f"engine-{number}", ""  # names of the engine and the tenant
            tags = "_".join(hashlib.sha256(each.encode()).hexdigest()[:10] for each in names)
            named = {":method": "GET", ":path": f"/v1/responses/resp_{tags}_{'0' * 32}"}
            headers, *_ = asked(b"x", **named)
            headers.request_headers.end_of_stream = True
            call = process(channel)
            await call.write(headers)
            assert endpoint_of(await call.read()) == f"127.0.0.1:{engine.port}"
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
        await scheduler.until_idle()


async def test_only_the_endpoints_that_the_gateway_allows_are_chosen(tmp_path: Path) -> None:
    async with engines(answer, answer) as both, picker(tmp_path, both) as (scheduler, channel):
        for _ in range(3):
            call = process(channel)
            for message in asked(PROMPT, subset=f"127.0.0.1:{both[1].port}"):
                await call.write(message)
            assert endpoint_of(await call.read()) == f"127.0.0.1:{both[1].port}"
            call.cancel()
        for nothing in ("", "127.0.0.1:1"):
            call = process(channel)
            for message in asked(PROMPT, subset=nothing):
                await call.write(message)
            refused = await call.read()
            assert refused.immediate_response.status.code == 503
            assert body_of(refused)["error"]["code"] == "no_instance"
        await scheduler.until_idle()


async def test_a_call_that_is_cut_off_at_any_point_gives_everything_back(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (scheduler, channel):
        messages = asked(PROMPT, parts=2)
        for sent in range(len(messages) + 1):
            call = process(channel)
            for message in messages[:sent]:
                await call.write(message)
            await asyncio.sleep(0.02)
            call.cancel()
            await scheduler.until_idle()
        assert (await scheduler.status())["in_progress"] == 0


async def test_a_gateway_that_streams_bodies_otherwise_is_told_so(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (_, channel):
        call = process(channel)
        headers = asked(PROMPT)[0]
        headers.protocol_config.request_body_mode = pb.ProtocolConfiguration.BUFFERED
        await call.write(headers)
        assert (await call.read()).immediate_response.status.code == 500


async def test_answers_that_a_gateway_streams_come_back_unchanged(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (scheduler, channel):
        call = process(channel)
        messages = asked(PROMPT)
        messages[
            0
        ].protocol_config.response_body_mode = pb.ProtocolConfiguration.FULL_DUPLEX_STREAMED
        for message in messages:
            await call.write(message)
        await call.read(), await call.read()
        status = pb.HeaderValue(key=":status", raw_value=b"200")
        headers = pb.HttpHeaders(headers=pb.HeaderMap(headers=[status]))
        await call.write(pb.ProcessingRequest(response_headers=headers))
        told = (await call.read()).response_headers.response.header_mutation.set_headers
        assert b"engine-0" in [option.header.raw_value for option in told]
        body = pb.HttpBody(body=b"word", end_of_stream=True)
        await call.write(pb.ProcessingRequest(response_body=body))
        again = (await call.read()).response_body.response.body_mutation.streamed_response
        assert (again.body, again.end_of_stream) == (b"word", True)
        await call.done_writing()
        await scheduler.until_idle()
        labels = {"instance_id": "engine-0", "status": "200"}
        assert await scheduler.metric("foretell_requests_total", **labels) == 1


async def test_what_a_gateway_sent_elsewhere_is_explained_as_such(tmp_path: Path) -> None:
    async with (
        engines(answer, answer) as two,
        picker(tmp_path, two) as (scheduler, channel),
    ):
        call = process(channel)
        for message in asked(PROMPT, **{"x-request-id": "moved"}):
            await call.write(message)
        where = endpoint_of(await call.read())
        await call.read()
        _, other = where.split(",")
        fields = {":status": "200", "x-gateway-destination-endpoint-served": other}
        values = [pb.HeaderValue(key=k, raw_value=v.encode()) for k, v in fields.items()]
        headers = pb.HttpHeaders(headers=pb.HeaderMap(headers=values))
        await call.write(pb.ProcessingRequest(response_headers=headers))
        await call.read()
        await call.done_writing()
        await scheduler.until_idle()
        told = (await scheduler.client.get("/explain/moved")).json()
        chosen, served = told["attempts"]
        assert chosen["instance_id"] != served["instance_id"]
        assert served["because"] == (
            f"the gateway sent it to {served['instance_id']}, "
            f"having tried {chosen['instance_id']} in vain"
        )
        assert (chosen["happened"]["finished"], served["happened"]["finished"]) == (False, True)


async def test_the_first_request_may_be_tried_elsewhere(tmp_path: Path) -> None:
    """Engines are given by host name, and no earlier request has resolved the names."""
    async with engines(answer, answer) as two:
        named = [each.config() | {"url": f"http://localhost:{each.port}"} for each in two]
        instances = json.dumps(named)
        async with picker(tmp_path, two, instances=instances) as (scheduler, channel):
            call = process(channel)
            for message in asked(PROMPT):
                await call.write(message)
            both = endpoint_of(await call.read()).split(",")
            assert {each.rpartition(":")[2] for each in both} == {str(each.port) for each in two}
            call.cancel()
            await scheduler.until_idle()


async def test_a_gateways_own_answer_goes_on(tmp_path: Path) -> None:
    """For example the refusal of an upgrade, of whose request the picker has got no message."""
    async with engines(answer) as (engine,), picker(tmp_path, [engine]) as (scheduler, channel):
        for value in ("403", "none"):
            call = process(channel)
            headers = pb.ProcessingRequest()
            header = headers.response_headers.headers.headers.add(key=":status")
            header.raw_value = value.encode()
            await call.write(headers)
            assert (await call.read()).HasField("response_headers")
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
        await scheduler.until_idle()
