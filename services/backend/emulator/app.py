"""vLLM's OpenAI API for the emulated engine."""

import time
from typing import Any
from uuid import uuid4

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from foretell.model import EngineConfig
from foretell.services.backend.emulator.answer import JobMaker
from foretell.services.backend.emulator.driver import EmulatorDriver, RefusedError
from foretell.services.backend.emulator.formats import (
    ChatFormat,
    CompletionFormat,
    MessagesFormat,
)
from foretell.services.backend.emulator.protocol import (
    ChatRequest,
    CompletionRequest,
    CountTokensRequest,
    GenerationRequest,
    MessagesRequest,
    VllmError,
    parse,
)
from foretell.services.backend.emulator.responses import JobResponse

_INT32_MAX = 2**31 - 1
_CLIENT_GONE = 499  # nginx's status for a client that has disconnected


class Engine:
    """One emulated engine, as used by its routes."""

    def __init__(
        self, config: EngineConfig, driver: EmulatorDriver, jobs: JobMaker, max_body_bytes: int
    ) -> None:
        self.config = config
        self.driver = driver
        self._jobs = jobs
        self._max_body_bytes = max_body_bytes
        self.created_unix_s = int(time.time())

    async def generate(
        self,
        request: Request,
        request_class: type[GenerationRequest],
        format_class: type[CompletionFormat],
    ) -> Response:
        """Answer one request; raises `VllmError`."""
        asked = parse(request_class, await self._read(request))
        if asked.model and asked.model != self.config.model_name:
            raise VllmError(404, f"The model `{asked.model}` does not exist.", "model")
        now_unix_s = time.time()
        response_id = format_class.id_prefix + request.headers.get("x-request-id", uuid4().hex)
        job = self._jobs.make(asked, response_id, _priority(request, asked), now_unix_s)
        formats = format_class(response_id, self.config.model_name, int(now_unix_s))
        try:
            self.driver.submit([answer.stream for answer in job.answers])
        except RefusedError as error:
            raise VllmError(503, str(error)) from error
        return JobResponse(job, self.driver, formats, asked.streaming)

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of a prompt for Anthropic's API; raises `VllmError`."""
        asked = parse(CountTokensRequest, await self._read(request))
        return JSONResponse({"input_tokens": len(asked.prompts()[0])})

    def model_card(self) -> dict[str, Any]:
        return {
            "id": self.config.model_name,
            "object": "model",
            "created": self.created_unix_s,
            "owned_by": "foretell-emulated",
            "root": self.config.model_name,
            "parent": None,
            "max_model_len": self.config.max_model_len,
            "permission": [],
        }

    async def _read(self, request: Request) -> bytes:
        """The body, refused as soon as it is known to be too long."""
        limit = self._max_body_bytes
        too_long = VllmError(413, f"the request body exceeds {limit} bytes")
        if int(request.headers.get("content-length", 0)) > limit:
            raise too_long
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise too_long
        return bytes(body)


def _priority(request: Request, asked: GenerationRequest) -> int:
    """The header wins over the body, as in vLLM; an unreadable one is ignored."""
    try:
        priority = int(request.headers["x-vllm-priority"])
    except (KeyError, ValueError):
        return asked.priority
    return max(-_INT32_MAX, min(priority, _INT32_MAX))


def create_app(engine: Engine) -> ASGIApp:
    """Make the application that serves the engine's HTTP API."""

    async def health(_: Request) -> Response:
        return Response(status_code=503 if engine.driver.stopped else 200)

    async def metrics(_: Request) -> Response:
        return Response(engine.driver.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def version(_: Request) -> Response:
        return JSONResponse({"version": engine.config.engine_version})

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [engine.model_card()]})

    def answers(path: str, asked: type[GenerationRequest], form: type[CompletionFormat]) -> Route:
        async def generate(request: Request) -> Response:
            return await engine.generate(request, asked, form)

        return Route(path, generate, methods=["POST"])

    routes = (
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/version", version),
        Route("/v1/models", models),
        answers("/v1/completions", CompletionRequest, CompletionFormat),
        answers("/v1/chat/completions", ChatRequest, ChatFormat),
        answers("/v1/messages", MessagesRequest, MessagesFormat),
        Route("/v1/messages/count_tokens", engine.count_tokens, methods=["POST"]),
    )
    kinds = (VllmError, HTTPException, ClientDisconnect, Exception)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _on_error))


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=_CLIENT_GONE)
    if isinstance(error, HTTPException):
        missing = f"an emulated engine does not offer {request.url.path}"
        error = VllmError(error.status_code, missing if error.status_code == 404 else error.detail)
    if not isinstance(error, VllmError):
        error = VllmError(500, "internal error")
    headers = {"retry-after": "1"} if error.status == 503 else None
    is_message = request.url.path.startswith("/v1/messages")
    body = error.anthropic_body() if is_message else error.body()
    return JSONResponse(body, error.status, headers)
