"""The HTTP surface: OpenAI's endpoints, health, metrics and status."""

import asyncio
import hmac
import re
import time
import uuid
from dataclasses import dataclass, replace

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from services.scheduler.http.errors import ApiError, unavailable
from services.scheduler.http.parsing import Endpoint, parse, with_priority_header
from services.scheduler.http.slo import NO_TERMS, Terms, terms_of
from services.scheduler.relay.relay import (
    CLIENT_CLOSED_REQUEST,
    FORWARDED_HEADERS,
    Relay,
    RelayContext,
)

_BODY_DEADLINE_S = 60.0
_PRINTABLE = re.compile(r"[ -~]+")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(slots=True)
class Replica:
    """One scheduler replica, as its HTTP surface needs it."""

    replica_id: str
    context: RelayContext
    api_keys: tuple[bytes, ...]
    max_body_bytes: int
    max_concurrent_requests: int
    terms: Terms = NO_TERMS
    """Of requests that say nothing of their own."""
    draining: bool = False


def create_app(replica: Replica) -> FastAPI:
    """The ASGI application of one replica."""
    app = FastAPI(title="Foretell", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.replica = replica
    app.include_router(_router(replica))

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{error.detail}: {request.method} {request.url.path}"
        return ApiError(error.status_code, message, headers=dict(error.headers or {})).response()

    return app


def _router(replica: Replica) -> APIRouter:
    router = APIRouter()
    pool = replica.context.placer.pool

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await _accept(replica, "chat/completions", request)

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _accept(replica, "completions", request)

    @router.get("/v1/models")
    async def models(request: Request) -> JSONResponse:
        _authorize(replica, request)
        cards = [_model_card(name, emulated) for name, emulated in sorted(pool.models().items())]
        return JSONResponse({"object": "list", "data": cards})

    @router.get("/health")
    async def health() -> Response:
        return Response()

    @router.get("/ready")
    async def ready() -> Response:
        if replica.draining:
            raise unavailable("this replica is shutting down", "draining")
        if not pool.ready:
            raise unavailable("no engine is up yet", "no_instance")
        return PlainTextResponse("ready\n")

    @router.get("/metrics")
    async def metrics() -> Response:
        text = generate_latest(replica.context.metrics.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @router.get("/status")
    async def status(request: Request) -> JSONResponse:
        _authorize(replica, request)
        return JSONResponse(_status(replica))

    return router


async def _accept(replica: Replica, endpoint: Endpoint, request: Request) -> Response:
    """Everything that can be refused is refused here, before any engine hears of it."""
    refused = replica.context.metrics.requests
    try:
        tenant = _authorize(replica, request)
        return await _admit(replica, endpoint, request, tenant)
    except ApiError as error:
        refused.labels("", "", "", str(error.status)).inc()
        raise
    except ClientDisconnect:
        refused.labels("", "", "", str(CLIENT_CLOSED_REQUEST)).inc()
        return Response(status_code=CLIENT_CLOSED_REQUEST)  # to nobody


async def _admit(replica: Replica, endpoint: Endpoint, request: Request, tenant: str) -> Relay:
    """A place for the request while its body comes; the relay gives it up when it ends."""
    progress = replica.context.progress
    if progress.now >= replica.max_concurrent_requests:
        raise ApiError(
            429,
            f"{replica.max_concurrent_requests} requests are in progress already; retry shortly",
            code="too_many_requests",
            headers={"retry-after": "1"},
        )
    progress.now += 1
    try:
        return await _prepare(replica, endpoint, request, tenant)
    except BaseException:  # a disconnect or a shutdown too: there will be no relay
        progress.now -= 1
        raise


async def _prepare(replica: Replica, endpoint: Endpoint, request: Request, tenant: str) -> Relay:
    terms = terms_of(request.headers, replica.terms)
    parsed = parse(endpoint, await _body(request, replica.max_body_bytes))
    parsed = with_priority_header(parsed, request.headers.get("x-vllm-priority", ""))
    parsed = replace(parsed, tenant=tenant, terms=terms)
    pool = replica.context.placer.pool
    known = pool.models()
    if not known:
        raise unavailable("no engine is up yet", "no_instance")
    if parsed.model not in known:
        raise ApiError(
            404, f"The model '{parsed.model}' does not exist.", "model", "model_not_found"
        )
    given = request.headers.get("x-request-id", "")
    request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    wanted = {name: request.headers.get(name, "") for name in FORWARDED_HEADERS}
    forward = {name: value for name, value in wanted.items() if _PRINTABLE.fullmatch(value)}
    return Relay(replica.context, parsed, request_id, forward)


def _authorize(replica: Replica, request: Request) -> str:
    """Whose key it is, by its number among the replica's; "" where none is needed."""
    if not replica.api_keys:
        return ""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    given = key.strip().encode()
    # Every key is compared, each in constant time: timing tells nothing of any.
    matches = [hmac.compare_digest(given, known) for known in replica.api_keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise ApiError(
            401,
            "a valid API key is needed: send 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
    return str(matches.index(True) + 1)


async def _body(request: Request, limit: int) -> bytes:
    """The request's body, never more than `limit` bytes of it in memory."""
    too_long = ApiError(
        413, f"the request body is longer than {limit} bytes", code="request_too_large"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_DEADLINE_S):  # it holds a place of those in progress
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_long
    except TimeoutError as error:
        raise ApiError(
            408, f"the request body did not arrive within {_BODY_DEADLINE_S:.0f} s"
        ) from error
    return bytes(body)


def _model_card(name: str, emulated: bool) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "foretell-emulated" if emulated else "foretell",
    }


def _status(replica: Replica) -> dict[str, object]:
    placer = replica.context.placer
    return {
        "replica_id": replica.replica_id,
        "policy": placer.policy.name,
        "requests_total": replica.context.progress.total,
        "in_progress": replica.context.progress.now,
        "instances": [
            {
                "instance_id": instance.config.instance_id,
                "url": instance.config.url,
                "healthy": instance.healthy,
                "emulated": instance.emulated,
                "model_names": sorted(instance.model_names),
                "outstanding": instance.outstanding,
                "dispatched_total": instance.dispatched_total,
            }
            for instance in placer.pool.instances.values()
        ],
    }
