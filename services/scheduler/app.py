"""The HTTP surface of one replica: OpenAI's endpoints, health, metrics and status."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.scheduler.http.accepting import accepted, model_not_found, request_id_of
from services.scheduler.http.auth import ApiKeys
from services.scheduler.http.errors import CLIENT_CLOSED_REQUEST, ApiError, unavailable
from services.scheduler.http.exchange import ClientLeft, Exchange
from services.scheduler.http.headers import forwarded
from services.scheduler.http.limits import InProgress
from services.scheduler.http.parsing import PRIORITY_HEADER
from services.scheduler.http.quota import Grant, Tenant
from services.scheduler.http.response import Response
from services.scheduler.http.slo import NO_TERMS, Terms, terms_of
from services.scheduler.http.surface import ENDPOINTS, Endpoint
from services.scheduler.placing.placer import Placer
from services.scheduler.placing.pool import Instance, Pool
from services.scheduler.record.gauges import show_instances
from services.scheduler.relay.relay import Relay, RelayContext

_MODELS = "/v1/models"


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


Headers = Mapping[str, str]
Page = Callable[[Headers], Response]


class App:
    """The application of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._pages: dict[str, Page] = {
            _MODELS: self._models,
            "/health": lambda _: Response(200, content_type="text/plain"),
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/status": self._status,
        }

    async def __call__(self, exchange: Exchange) -> None:
        try:
            endpoint = ENDPOINTS.get(exchange.path)
            if endpoint is None or exchange.method != "POST":
                exchange.respond(self.page(exchange.method, exchange.path, exchange.headers))
            else:
                await self._place(endpoint, exchange)
        except ApiError as error:
            exchange.respond(error.response(exchange.path))

    async def _place(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Have an engine answer.

        One block holds the request's place among those in progress from the first byte of its body
        to the last of its answer.
        """
        replica = self._replica
        refused = replica.relay.metrics.requests
        try:
            tenant = self._tenant(exchange.headers)
            with replica.in_progress.place(), tenant.place() as grant:
                relay = await self._prepare(endpoint, exchange, tenant, grant)
                replica.accepted_total += 1
                await relay.serve(exchange)
        except ApiError as error:
            refused.labels("", "", "", str(error.status)).inc()
            raise
        except ClientLeft:
            refused.labels("", "", "", str(CLIENT_CLOSED_REQUEST)).inc()

    async def _prepare(
        self, endpoint: Endpoint, exchange: Exchange, tenant: Tenant, grant: Grant | None
    ) -> Relay:
        """Refuse whatever can be refused before an engine hears of it; raises `ApiError`."""
        replica, headers = self._replica, exchange.headers
        terms = terms_of(headers, replica.terms)
        body = await exchange.body(replica.max_body_bytes)
        models = replica.pool.models()
        parsed = accepted(
            endpoint, headers, body, tenant=tenant, grant=grant, terms=terms, models=models
        )
        forward = forwarded(headers)
        if tenant.key is not None and tenant.key.priority is not None:
            forward[PRIORITY_HEADER] = str(parsed.priority)
        return Relay(replica.relay, parsed, request_id_of(headers), forward)

    def page(self, method: str, path: str, headers: Headers) -> Response:
        """The answer to a request that generates nothing; raises `ApiError` where there is none."""
        page = self._pages.get(path)
        if page is None and path.startswith(f"{_MODELS}/"):
            page = partial(self._model, path.removeprefix(f"{_MODELS}/"))
        if page is not None and method == "GET":
            return page(headers)
        if page is None and path not in ENDPOINTS:
            raise ApiError(404, f"Not Found: {method} {path}")
        allow = {"allow": "POST" if page is None else "GET"}
        raise ApiError(405, f"Method Not Allowed: {method} {path}", headers=allow)

    def _tenant(self, headers: Headers) -> Tenant:
        return self._replica.api_keys.tenant(headers)

    def _models(self, headers: Headers) -> Response:
        tenant = self._tenant(headers)
        cards = sorted(self._replica.pool.cards().items())
        usable = [card for name, card in cards if tenant.may_use(name)]
        return _json({"object": "list", "data": usable})

    def _model(self, name: str, headers: Headers) -> Response:
        tenant = self._tenant(headers)
        card = self._replica.pool.cards().get(name)
        if card is None or not tenant.may_use(name):
            raise model_not_found(name)
        return _json(card)

    def _ready(self, _: Headers) -> Response:
        if self._replica.draining:
            raise unavailable("this replica is shutting down", "draining")
        if not self._replica.pool.ready:
            raise unavailable("no engine is up yet", "no_instance")
        return Response(200, b"ready\n", "text/plain")

    def _metrics(self, _: Headers) -> Response:
        relay = self._replica.relay
        show_instances(relay.metrics, relay.placer.predictors)
        text = generate_latest(relay.metrics.registry)
        return Response(200, text, CONTENT_TYPE_LATEST)

    def _status(self, headers: Headers) -> Response:
        self._tenant(headers)
        return _json(_status(self._replica))


def _json(value: object) -> Response:
    return Response(200, json.dumps(value).encode())


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
