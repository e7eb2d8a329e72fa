"""The HTTP surface of one replica: OpenAI's endpoints, health, metrics and status."""

import re
import time
import uuid
from dataclasses import dataclass, replace
from typing import get_args

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from services.scheduler.http.auth import ApiKeys
from services.scheduler.http.errors import CLIENT_CLOSED_REQUEST, ApiError, unavailable
from services.scheduler.http.limits import InProgress, read_body
from services.scheduler.http.parsing import (
    PRIORITY_HEADER,
    Endpoint,
    ParsedRequest,
    parse,
    with_priority_header,
)
from services.scheduler.http.slo import NO_TERMS, Terms, terms_of
from services.scheduler.placing.placer import Placer
from services.scheduler.placing.pool import Instance, Pool
from services.scheduler.relay.relay import Relay, RelayContext

_FORWARDED_HEADERS = ("traceparent", "tracestate", PRIORITY_HEADER)
"""The client's headers that engines get. The client's API key is not among them."""
_PRINTABLE = re.compile(r"[ -~]+")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(slots=True)
class Replica:
    """One scheduler replica as its HTTP surface sees it."""

    replica_id: str
    policy: str
    pool: Pool
    relay: RelayContext
    api_keys: ApiKeys
    in_progress: InProgress
    max_body_bytes: int
    terms: Terms = NO_TERMS
    """Targets of requests that state none of their own."""
    accepted_total: int = 0
    """Requests that were found valid and handed to the relay."""
    draining: bool = False
    """The replica is shutting down: it is no longer ready, but answers what still arrives."""


def create_app(replica: Replica) -> FastAPI:
    """The ASGI application of one replica."""
    app = FastAPI(title="Foretell", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(_router(replica))
    for endpoint in get_args(Endpoint):
        app.router.routes.append(
            Route(f"/v1/{endpoint}", _Generation(replica, endpoint), methods=["POST"])
        )

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
    pool = replica.pool

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
        text = generate_latest(replica.relay.metrics.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @router.get("/status")
    async def status(request: Request) -> JSONResponse:
        _authorize(replica, request)
        return JSONResponse(_status(replica))

    return router


class _Generation:
    """An endpoint that generates text, as an ASGI application.

    A FastAPI handler would return the response before it is sent. Here one block holds the
    request's place among those in progress from the first byte of its body to the last of its
    answer.
    """

    def __init__(self, replica: Replica, endpoint: Endpoint) -> None:
        self._replica = replica
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        replica, request = self._replica, Request(scope, receive)
        refused = replica.relay.metrics.requests
        try:
            tenant = _authorize(replica, request)
            with replica.in_progress.place():
                relay = await self._prepare(request, tenant)
                replica.accepted_total += 1
                await relay.serve(receive, send)
        except ApiError as error:
            refused.labels("", "", "", str(error.status)).inc()
            raise
        except ClientDisconnect:
            refused.labels("", "", "", str(CLIENT_CLOSED_REQUEST)).inc()
            # Nobody receives it, but ASGI servers complain about a missing response.
            await Response(status_code=CLIENT_CLOSED_REQUEST)(scope, receive, send)

    async def _prepare(self, request: Request, tenant: str) -> Relay:
        """Refuse whatever can be refused before an engine hears of it; raises `ApiError`."""
        replica, headers = self._replica, request.headers
        terms = terms_of(headers, replica.terms)
        parsed = parse(self._endpoint, await read_body(request, replica.max_body_bytes))
        parsed = with_priority_header(parsed, headers.get(PRIORITY_HEADER, ""))
        parsed = replace(parsed, tenant=tenant, terms=terms)
        _check_model(replica.pool, parsed)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        wanted = {name: headers.get(name, "") for name in _FORWARDED_HEADERS}
        forward = {name: value for name, value in wanted.items() if _PRINTABLE.fullmatch(value)}
        return Relay(replica.relay, parsed, request_id, forward)


def _check_model(pool: Pool, request: ParsedRequest) -> None:
    known = pool.models()
    if not known:
        raise unavailable("no engine is up yet", "no_instance")
    if request.model not in known:
        raise ApiError(
            404, f"The model '{request.model}' does not exist.", "model", "model_not_found"
        )


def _authorize(replica: Replica, request: Request) -> str:
    return replica.api_keys.tenant(request.headers.get("authorization", ""))


def _model_card(name: str, emulated: bool) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "foretell-emulated" if emulated else "foretell",
    }


def _status(replica: Replica) -> dict[str, object]:
    return {
        "replica_id": replica.replica_id,
        "policy": replica.policy,
        "requests_total": replica.accepted_total,
        "in_progress": replica.in_progress.now,
        "instances": [
            _instance_status(instance, replica.relay.placer)
            for instance in replica.pool.instances.values()
        ],
    }


def _instance_status(instance: Instance, placer: Placer) -> dict[str, object]:
    outstanding, dispatched = placer.counts(instance.config.instance_id)
    return {
        "instance_id": instance.config.instance_id,
        "url": instance.config.url,
        "healthy": instance.healthy,
        "emulated": instance.emulated,
        "model_names": sorted(instance.model_names),
        "outstanding": outstanding,
        "dispatched_total": dispatched,
    }
