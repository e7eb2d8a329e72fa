"""Delivers a job's tokens to its client, and aborts the job if the client disconnects."""

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from foretell.services.backend.emulator.answer import EmulatedChoice, EmulatedRequest, usage_of
from foretell.services.backend.emulator.driver import EmulatorDriver
from foretell.services.backend.emulator.formats import CompletionFormat
from foretell.services.backend.emulator.protocol import StreamOptions, VllmError


class JobResponse(Response):
    """The answer of a request, made while its client waits for it."""

    def __init__(
        self,
        job: EmulatedRequest,
        driver: EmulatorDriver,
        formats: CompletionFormat,
        options: StreamOptions | None,
    ) -> None:
        """With `options` the answer is streamed: one event per token and choice."""
        super().__init__()
        self._job = job
        self._driver = driver
        self._formats = formats
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the client; raises `VllmError` if the engine stops meanwhile."""
        gone = asyncio.create_task(_until_gone(receive))
        answering = asyncio.create_task(self._answer(scope, receive, send))
        try:
            await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering
        finally:
            gone.cancel()
            answering.cancel()
            for answer in self._job.answers:
                self._driver.abort(answer.stream)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._options is not None:
            events = self._events(self._options)
            await StreamingResponse(events, media_type="text/event-stream").stream_response(send)
            return
        job, texts = self._job, [""] * len(self._job.answers)
        async for pieces in self._pieces():
            for answer, text in pieces:
                texts[answer.index] += text
        body = self._formats.body(job.answers, texts, job.usage())
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _events(self, options: StreamOptions) -> AsyncIterator[bytes]:
        """Yield server-sent events while the engine generates tokens."""
        job, formats, continuous = self._job, self._formats, options.continuous_usage_stats
        none_yet = usage_of(sum(job.prompt_tokens), 0) if continuous else None
        body = formats.opening(len(job.answers), none_yet)
        async for pieces in self._pieces():
            for answer, text in pieces:
                body += formats.chunk(answer, text, job.usage(answer) if continuous else None)
            if body:
                yield body
            body = b""
        yield formats.finale(job.usage() if options.include_usage else None)

    async def _pieces(self) -> AsyncIterator[list[tuple[EmulatedChoice, str]]]:
        """Yield at each wake-up the answers that have news, with their new text, until all end."""
        job, driver = self._job, self._driver
        open_answers = len(job.answers)
        while open_answers:
            await job.wake.wait()
            job.wake.clear()
            if driver.stopped:
                raise VllmError(500, "the engine has stopped")
            pieces = [(answer, answer.read()) for answer in job.answers if answer.has_news]
            for answer, _ in pieces:
                if answer.finish_reason is not None:
                    driver.abort(answer.stream)  # after a stop string the twin would go on
                    open_answers -= 1
            if pieces:
                yield pieces


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
