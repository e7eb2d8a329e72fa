"""Delivers a job's tokens to its client, and takes the job back when the client goes away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from services.backend.emulator.answer import Answer, Job
from services.backend.emulator.driver import Driver
from services.backend.emulator.formats import DONE, CompletionFormat
from services.backend.emulator.protocol import ApiError, StreamOptions

CLIENT_GONE = 499  # nginx's status for an answer that nobody reads


class EngineStoppedError(Exception):
    """The engine's loop has ended while a request was in it."""


class ClientGoneError(Exception):
    """The client has closed its connection."""


@contextlib.asynccontextmanager
async def _watched(receive: Receive, job: Job, driver: Driver) -> AsyncIterator[asyncio.Task[None]]:
    """Yields a task that is done once the client is gone; the job leaves the engine at the end."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.wake.set()

    gone = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        gone.cancel()
        job.abort(driver)


async def _pieces(
    job: Job, driver: Driver, gone: asyncio.Task[None]
) -> AsyncIterator[list[tuple[Answer, str]]]:
    """What each wake-up brings of which answers, until all have ended.

    Raises `ClientGoneError` or `EngineStoppedError` when nothing more will come.
    """
    open_answers = len(job.answers)
    while open_answers:
        await job.wake.wait()
        job.wake.clear()
        if gone.done():
            raise ClientGoneError
        if driver.stopped:
            raise EngineStoppedError
        pieces = [(answer, answer.read()) for answer in job.answers if answer.has_news]
        for answer, _ in pieces:
            if answer.finish_reason is not None:
                driver.abort(answer.stream)  # after a stop string the twin would go on
                open_answers -= 1
        if pieces:
            yield pieces


async def whole_answer(
    request: Request, job: Job, driver: Driver, formats: CompletionFormat
) -> Response:
    """The answer of a request that is not streamed."""
    texts = [""] * len(job.answers)
    try:
        async with _watched(request.receive, job, driver) as gone:
            async for pieces in _pieces(job, driver, gone):
                for answer, text in pieces:
                    texts[answer.index] += text
    except ClientGoneError:
        return Response(status_code=CLIENT_GONE)
    except EngineStoppedError as error:
        raise ApiError(500, "the engine has stopped") from error
    return Response(formats.body(job.answers, texts, job.usage()), media_type="application/json")


class StreamedAnswer(Response):
    """Server-sent events, one per token and choice, written as the engine makes them."""

    media_type = "text/event-stream"

    def __init__(
        self, job: Job, driver: Driver, formats: CompletionFormat, options: StreamOptions
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers()
        self._job = job
        self._driver = driver
        self._formats = formats
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with _watched(receive, self._job, self._driver) as gone:
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                await self._relay(send, gone)
        except ClientGoneError:
            pass

    async def _relay(self, send: Send, gone: asyncio.Task[None]) -> None:
        job, formats, continuous = self._job, self._formats, self._options.continuous_usage_stats
        opened = False
        async for pieces in _pieces(job, self._driver, gone):
            body = b""
            if not opened:
                opened = True
                none_yet = job.usage_at_start() if continuous else None
                body = formats.opening(range(len(job.answers)), none_yet)
            for answer, text in pieces:
                body += formats.chunk(
                    answer, text, job.usage_so_far(answer) if continuous else None
                )
            await send({"type": "http.response.body", "body": body, "more_body": True})
        usage = formats.usage_chunk(job.usage()) if self._options.include_usage else b""
        await send({"type": "http.response.body", "body": usage + DONE, "more_body": False})
