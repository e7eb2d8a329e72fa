"""The HTTP surface of one replica: OpenAI's endpoints, health, metrics and status."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from foretell import __version__
from foretell.services.scheduler.api.described import described
from foretell.services.scheduler.api.errors import CLIENT_CLOSED_REQUEST, ApiError, unavailable
from foretell.services.scheduler.api.headers import forwarded
from foretell.services.scheduler.api.parsing import PRIORITY_HEADER
from foretell.services.scheduler.api.slo import NO_TERMS, Terms, terms_of
from foretell.services.scheduler.api.surface import ENDPOINTS, Endpoint
from foretell.services.scheduler.console import STATE, WHAT_IF, static_pages
from foretell.services.scheduler.console.state import console_state
from foretell.services.scheduler.console.what_if import WhatIf
from foretell.services.scheduler.discovery import Discovery
from foretell.services.scheduler.http.cors import Cors
from foretell.services.scheduler.http.exchange import ClientLeft, Exchange
from foretell.services.scheduler.http1.response import Response
from foretell.services.scheduler.placing.pool import Pool
from foretell.services.scheduler.proxy.batches import METHODS as BATCH_METHODS
from foretell.services.scheduler.proxy.batches import Batches, is_for_batches
from foretell.services.scheduler.proxy.stored import METHODS as STORED_METHODS
from foretell.services.scheduler.proxy.stored import StoredResponses, is_stored
from foretell.services.scheduler.record.explained import told
from foretell.services.scheduler.record.gauges import show_instances
from foretell.services.scheduler.record.status import instance_statuses
from foretell.services.scheduler.relay.held import (
    LAST_EVENT_HEADER,
    HeldStream,
    HeldStreams,
    is_resumable,
)
from foretell.services.scheduler.relay.relay import Relay, RelayContext
from foretell.services.scheduler.tenants.accepting import accepted, model_not_found, request_id_of
from foretell.services.scheduler.tenants.auth import ApiKeys
from foretell.services.scheduler.tenants.places import InProgress
from foretell.services.scheduler.tenants.quota import NOBODY, Grant, Tenant

_MODELS = "/v1/models"
_READS = ("GET", "HEAD")
_EXPLAIN = "/explain/"
_OF_ONE_REPLICA = (STATE, _EXPLAIN)
"""Whoever asks again is to hear of another replica behind the same address."""


@dataclass(slots=True)
class Replica:
    """One scheduler replica as its HTTP surface sees it."""

    replica_id: str
    policy: str
    pool: Pool
    relay: RelayContext
    api_keys: ApiKeys
    in_progress: InProgress
    batches: Batches
    stored: StoredResponses
    what_if: WhatIf
    max_body_bytes: int
    discovery: Discovery | None = None
    """Where instances come from, if they are not listed."""
    held: HeldStreams = field(default_factory=HeldStreams)
    """Streams to which clients may come back."""
    cors: Cors = field(default_factory=lambda: Cors(()))
    """From which origins pages may call."""
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
            STATE: self._console_state,
            **static_pages(),
            **described(),
        }

    async def __call__(self, exchange: Exchange) -> None:
        try:
            exchange.extra_lines = self._replica.cors.lines(exchange.headers)
            endpoint = ENDPOINTS.get(exchange.path)
            if exchange.method == "OPTIONS":
                exchange.respond(self._options(exchange.path, exchange.headers))
            elif endpoint is not None and exchange.method == "POST":
                if LAST_EVENT_HEADER in exchange.headers and is_resumable(exchange.headers):
                    await self._go_on(exchange)
                else:
                    await self._place(endpoint, exchange)
            elif is_for_batches(exchange.path):
                tenant = self._tenant(exchange.headers)
                await self._replica.batches.pass_on(exchange, tenant)
            elif is_stored(exchange.path):
                tenant = self._tenant(exchange.headers)
                with self._replica.in_progress.place(tenant.name):
                    await self._replica.stored.pass_on(exchange)
            elif exchange.path == WHAT_IF and exchange.method in _READS:
                self._replica.api_keys.check_admin(exchange.headers)
                exchange.respond(_json(await self._replica.what_if.answer(exchange.query)))
            else:
                exchange.keep_alive &= not exchange.path.startswith(_OF_ONE_REPLICA)
                exchange.respond(self.page(exchange.method, exchange.path, exchange.headers))
        except ApiError as error:
            exchange.respond(error.response(exchange.path))

    async def _place(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Have an engine answer.

        One block holds the request's place among those in progress from the first byte of its body
        to the last of its answer.
        """
        replica = self._replica
        try:
            tenant = self._tenant(exchange.headers)
            with replica.in_progress.place(tenant.name), tenant.place() as grant:
                relay = await self._prepare(endpoint, exchange, tenant, grant)
                replica.accepted_total += 1
                held = self._hold(relay, exchange, tenant)
                try:
                    await relay.serve(held or exchange)
                finally:
                    if held is not None:
                        held.over()
        except ApiError as error:
            self._refused(error.status)
            raise
        except ClientLeft:
            self._refused(CLIENT_CLOSED_REQUEST)

    def _refused(self, status: int) -> None:
        """Count a request of which no engine has heard."""
        self._replica.relay.metrics.requests.labels("", "", "", str(status)).inc()

    def _hold(self, relay: Relay, exchange: Exchange, tenant: Tenant) -> HeldStream | None:
        """What holds the answer for a client that asks for it; None: nothing."""
        if not (relay.streams and is_resumable(exchange.headers)):
            return None
        return self._replica.held.hold(exchange, tenant.name)

    async def _go_on(self, exchange: Exchange) -> None:
        """A client comes back to its stream. The place in progress is still that of its first
        request, whose body comes again and does not matter."""
        try:
            tenant = self._tenant(exchange.headers)
            await exchange.body(self._replica.max_body_bytes)
            await self._replica.held.go_on(exchange, tenant.name)
        except ApiError as error:
            self._refused(error.status)
            raise
        except ClientLeft:
            pass  # it may come back

    async def _prepare(
        self, endpoint: Endpoint, exchange: Exchange, tenant: Tenant, grant: Grant | None
    ) -> Relay:
        """Refuse whatever can be refused before an engine hears of it; raises `ApiError`."""
        replica, headers = self._replica, exchange.headers
        request_id = exchange.request_id = request_id_of(headers)
        terms = terms_of(headers, replica.terms)
        body = await exchange.body(replica.max_body_bytes)
        pool = replica.pool
        parsed = await accepted(
            endpoint,
            headers,
            body,
            tenant=tenant,
            grant=grant,
            terms=terms,
            serves=pool.may_serve,
            only=pool.only_model,
        )
        forward = forwarded(headers)
        if tenant.key is not None and tenant.key.priority is not None:
            forward[PRIORITY_HEADER] = str(parsed.priority)
        return Relay(replica.relay, parsed, request_id, forward)

    def page(self, method: str, path: str, headers: Headers) -> Response:
        """The answer to a request that generates nothing; raises `ApiError` where there is none."""
        page = self._page(path)
        if page is not None and method in _READS:
            return page(headers)
        methods = self._methods(path)
        if not methods:
            raise ApiError(404, f"Not Found: {method} {path}")
        raise ApiError(405, f"Method Not Allowed: {method} {path}", headers={"allow": methods})

    def _page(self, path: str) -> Page | None:
        if path.startswith(f"{_MODELS}/"):
            return partial(self._model, path.removeprefix(f"{_MODELS}/"))
        if path.startswith(_EXPLAIN):
            return partial(self._explain, path.removeprefix(_EXPLAIN))
        return self._pages.get(path)

    def _methods(self, path: str) -> str:
        """The methods that there are at a path; empty: nothing is there."""
        if path in ENDPOINTS:
            return "POST"
        if is_for_batches(path):
            return BATCH_METHODS
        if is_stored(path):
            return STORED_METHODS
        reads = path == WHAT_IF or self._page(path) is not None
        return "GET, HEAD" if reads else ""

    def _options(self, path: str, headers: Headers) -> Response:
        """What a browser asks before a page of another origin may call; anyone may know."""
        methods = BATCH_METHODS if path == "*" else self._methods(path)
        if not methods:
            raise ApiError(404, f"Not Found: OPTIONS {path}")
        methods += ", OPTIONS"
        told = self._replica.cors.preflight(headers, methods)
        return Response(204, headers={"allow": methods, **told})

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
            raise unavailable(
                "no engine is up yet", "no_instance", wait_s=self._replica.pool.out_for_s()
            )
        return Response(200, b"ready\n", "text/plain")

    def _metrics(self, _: Headers) -> Response:
        relay = self._replica.relay
        show_instances(relay.metrics, relay.placer.predictors)
        relay.metrics.over_share.set(relay.placer.core.over_share)
        text = generate_latest(relay.metrics.registry)
        return Response(200, text, CONTENT_TYPE_LATEST)

    def _console_state(self, headers: Headers) -> Response:
        replica = self._replica
        replica.api_keys.check_admin(headers)
        return _json(console_state(_status(replica), replica.relay.placer))

    def _explain(self, request_id: str, headers: Headers) -> Response:
        replica = self._replica
        replica.api_keys.check_admin(headers)
        placer = replica.relay.placer
        story = placer.stories.find(request_id)
        if story is None:
            text = (
                f"{replica.replica_id} does not remember this request: perhaps it is too long ago"
            )
            raise ApiError(404, text, code="request_not_remembered")
        explained = told(story, placer.core.policy)
        # Infinite numbers become null.
        return Response(200, orjson.dumps({"replica_id": replica.replica_id, **explained}))

    def _status(self, headers: Headers) -> Response:
        replica, tenant = self._replica, self._tenant(headers)
        if tenant is NOBODY or (tenant.key is not None and tenant.key.admin):
            return _json(_status(replica))
        own = tenant.told_to_itself(replica.in_progress.of(tenant.name))
        status = _status(replica)
        instances: list[dict[str, object]] = status.pop("instances")  # type: ignore[assignment]
        if tenant.key is None:
            # A key without a name is mostly that of who runs the cluster: all but addresses.
            names = {name for each in instances for name in each} - {"url"}
        else:
            names, status = {"instance_id", "healthy"}, {"replica_id": replica.replica_id}
        shown = [{name: v for name, v in each.items() if name in names} for each in instances]
        return _json({**status, **own, "instances": shown})


def _json(value: object) -> Response:
    return Response(200, json.dumps(value).encode())


def _status(replica: Replica) -> dict[str, object]:
    return {
        "replica_id": replica.replica_id,
        "version": __version__,
        "policy": replica.policy,
        "requests_total": replica.accepted_total,
        "in_progress": replica.in_progress.now,
        **({"discovery_problem": replica.discovery.problem} if replica.discovery else {}),
        "demand": {**replica.relay.placer.demand(), **replica.relay.recorder.sample.told()},
        "instances": instance_statuses(
            list(replica.pool.instances.values()),
            replica.relay.placer,
            replica.relay.recorder.recent,
        ),
    }
