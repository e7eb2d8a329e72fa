"""Audio comes as a form: the scheduler reads its model and passes it on byte for byte."""

import os
from pathlib import Path

import pytest
from engines import MODEL, Exchange, answer, engines
from schedulers import Scheduler, running

from foretell.openai.errors import ApiError
from foretell.openai.forms import MOST_PARTS, form_fields

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
TYPE = "multipart/form-data; boundary=----x"


def form(*parts: bytes, end: bytes = b"------x--\r\n") -> bytes:
    return b"".join(b"------x\r\n%b\r\n" % part for part in parts) + end


def field(name: str, value: bytes, extra: bytes = b"") -> bytes:
    return b'Content-Disposition: form-data; name="%b"%b\r\n\r\n%b' % (name.encode(), extra, value)


SOUND = field("file", b"\r\n------y\0\xff" + os.urandom(5_000_000), b'; filename="a.wav"')


async def text(exchange: Exchange) -> None:
    await exchange.head(200, "text/plain; charset=utf-8", length=5)
    await exchange.write(b"hello")


async def post(scheduler: Scheduler, path: str, body: bytes, kind: str = TYPE) -> tuple[int, bytes]:
    response = await scheduler.client.post(path, content=body, headers={"content-type": kind})
    return response.status_code, response.content


@pytest.mark.parametrize("path", PATHS)
async def test_a_form_is_passed_on_as_it_came(tmp_path: Path, path: str) -> None:
    body = form(field("language", b"de"), SOUND, field("model", MODEL.encode()))
    async with engines(text, text) as both, running(tmp_path, both) as scheduler:
        for _ in range(4):
            assert await post(scheduler, path, body) == (200, b"hello")
        for engine in both:
            for received in engine.received:
                assert (received.path, received.raw) == (path, body)
                assert received.headers["content-type"] == TYPE
        assert [len(engine.received) for engine in both] == [2, 2]
        await scheduler.until_idle()


async def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    async with engines(text) as (engine,), running(tmp_path, [engine]) as scheduler:
        model = field("model", MODEL.encode())
        assert (await post(scheduler, PATHS[0], form(SOUND)))[0] == 200  # means the only model
        for body, kind, code in (
            (form(field("model", b"other")), TYPE, 404),
            (form(model), "application/json", 400),
            (form(model), "multipart/form-data", 400),
            (form(model, end=b""), TYPE, 400),
            (form(model, field("stream", b"perhaps")), TYPE, 400),
            (b"", TYPE, 400),
        ):
            assert (await post(scheduler, PATHS[0], body, kind))[0] == code, body
        assert len(engine.received) == 1


async def test_a_stream_of_a_form_is_a_stream(tmp_path: Path) -> None:
    async def stream(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        await exchange.chunk(b'data: {"object":"transcription.chunk","choices":[]}\n\n')
        await exchange.chunk(b"data: [DONE]\n\n")
        await exchange.chunk(b"")

    async with engines(stream) as (engine,), running(tmp_path, [engine]) as scheduler:
        body = form(field("model", MODEL.encode()), field("stream", b"true"), SOUND)
        code, content = await post(scheduler, PATHS[0], body)
        assert (code, content.endswith(b"[DONE]\n\n")) == (200, True)


async def test_the_sdk_transcribes(tmp_path: Path) -> None:
    async def spoken(exchange: Exchange) -> None:
        assert b'name="model"' in exchange.received.raw
        await exchange.whole(200, b'{"text": "hello"}')

    async with engines(spoken) as (engine,), running(tmp_path, [engine]) as scheduler:
        sdk = scheduler.sdk()
        said = await sdk.audio.transcriptions.create(model=MODEL, file=("a.wav", b"RIFF"))
        assert said.text == "hello"
        await sdk.close()


async def test_one_engines_failure_is_anothers_form(tmp_path: Path) -> None:
    async def fail(exchange: Exchange) -> None:
        await exchange.whole(500, b"{}")

    body = form(field("model", MODEL.encode()), SOUND)
    async with (
        engines(fail, answer, text) as (bad, _, good),
        running(tmp_path, [bad, good]) as scheduler,
    ):
        for _ in range(2):
            assert await post(scheduler, PATHS[0], body) == (200, b"hello")


def test_fields_are_read_in_every_lawful_form() -> None:
    quoted = 'multipart/form-data; charset=utf-8; boundary="----x"'
    bare = b"content-disposition: form-data; name=model\r\n\r\nm"
    assert form_fields(quoted, b"preamble\r\n" + form(bare, SOUND)) == {"model": "m"}
    assert form_fields(TYPE, form(field("model", b""))) == {"model": ""}
    assert form_fields(TYPE, form(field("model", b"m" * 5000))) == {}
    for wrong in (form(*[field("a", b"b")] * (MOST_PARTS + 1)), form(b"no head"), b"------x"):
        with pytest.raises(ApiError):
            form_fields(TYPE, wrong)
