"""The HTTP surface of one replica: OpenAI's endpoints, health, metrics and status."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from foretell import __version__
from foretell.http1.response import Response
from foretell.openai.errors import ApiError, model_not_found, unavailable
from foretell.openai.headers import Cors
from foretell.openai.surface import ENDPOINTS
from foretell.services.http.costly import CostlyPages
from foretell.services.http.exchange import Exchange
from foretell.services.scheduler.console import STATE, console_state, static_pages
from foretell.services.scheduler.described import described
from foretell.services.scheduler.discovery import Discovery
from foretell.services.scheduler.lifecycle.context import Shared
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.proxy import (
    METHODS,
    Batches,
    StoredResponses,
    is_for_batches,
    is_stored,
)
from foretell.services.scheduler.record.explain import explained
from foretell.services.scheduler.record.status import instance_statuses, show_instances
from foretell.services.scheduler.relay.held import LAST_EVENT_HEADER, is_resumable
from foretell.services.scheduler.relay.relay import Relay
from foretell.tenants.quota import NOBODY, Tenant

_MODELS = "/v1/models"
_READS = ("GET", "HEAD")
_EXPLAIN = "/explain/"
_OF_ONE_REPLICA = (STATE, _EXPLAIN)
"""Answered on a connection that ends, so that the next request may reach another replica."""


Headers = Mapping[str, str]
Page = Callable[[Headers], Response]


@dataclass(eq=False)
class App:
    """One replica as its clients and gateways see it."""

    replica_id: str
    shared: Shared
    """What all requests share."""
    relay: Relay
    metrics: SchedulerMetrics
    batches: Batches
    stored: StoredResponses
    discovery: Discovery | None
    cors: Cors
    """The origins whose pages may call."""
    draining: bool = False
    """The replica is shutting down: it is no longer ready, but answers what still arrives."""

    def __post_init__(self) -> None:
        self._costly = CostlyPages()
        self._pages: dict[str, Page | Response] = {
            _MODELS: self._models,
            "/health": Response(200, content_type="text/plain"),
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/status": self._own_status,
            STATE: self._console_state,
            **static_pages(),
            **described(),
        }

    async def __call__(self, exchange: Exchange) -> None:
        method, path, headers = exchange.method, exchange.path, exchange.headers
        try:
            exchange.extra_lines = self.cors.lines(headers)
            endpoint = ENDPOINTS.get(path)
            if endpoint is not None and method == "POST":
                if LAST_EVENT_HEADER in headers and is_resumable(headers):
                    await self.relay.go_on(exchange)
                else:
                    await self.relay.answer(endpoint, exchange)
            elif method in METHODS and is_for_batches(path):
                await self.batches.pass_on(exchange, self._tenant(headers))
            elif method in METHODS and is_stored(path):
                tenant = self._tenant(headers)
                with self.shared.in_progress.place(tenant.name):
                    await self.stored.pass_on(exchange, tenant)
            else:
                exchange.keep_alive &= not path.startswith(_OF_ONE_REPLICA)
                exchange.respond(self.page(method, path, headers))
        except ApiError as error:
            exchange.respond(error.response(path))

    def page(self, method: str, path: str, headers: Headers) -> Response:
        """The answer to a request that is not passed on; raises `ApiError` 404 for an unknown path,
        and 405 for a method that the path does not take."""
        page = self._page(path)
        if page is not None and method in _READS:
            return page if isinstance(page, Response) else page(headers)
        methods = self._methods(method, path)
        if not methods:
            raise ApiError(404, f"Not Found: {method} {path}")
        allow = ", ".join((*methods, "OPTIONS"))
        if method == "OPTIONS":  # what a browser asks before a page of another origin may call
            return Response(204, headers={"allow": allow, **self.cors.preflight(headers, allow)})
        raise ApiError(405, f"Method Not Allowed: {method} {path}", headers={"allow": allow})

    def _page(self, path: str) -> Page | Response | None:
        if path.startswith(f"{_MODELS}/"):
            return partial(self._model, path.removeprefix(f"{_MODELS}/"))
        if path.startswith(_EXPLAIN):
            return partial(self._explain, path.removeprefix(_EXPLAIN))
        return self._pages.get(path)

    def _methods(self, method: str, path: str) -> Sequence[str]:
        """The methods that a path takes, told without authentication. The targets of CONNECT and of
        `OPTIONS *` are not paths."""
        if path in ENDPOINTS:
            return ("POST",)
        is_server = method == "CONNECT" or (method, path) == ("OPTIONS", "*")
        if is_server or is_for_batches(path) or is_stored(path):
            return METHODS
        return _READS if self._page(path) is not None else ()

    def _tenant(self, headers: Headers) -> Tenant:
        return self.shared.api_keys.tenant(headers)

    def _models(self, headers: Headers) -> Response:
        tenant = self._tenant(headers)
        cards = sorted(self.shared.pool.cards().items())
        usable = [card for name, card in cards if tenant.may_use(name)]
        return _json({"object": "list", "data": usable})

    def _model(self, name: str, headers: Headers) -> Response:
        tenant = self._tenant(headers)
        card = self.shared.pool.cards().get(name)
        if card is None or not tenant.may_use(name):
            raise model_not_found(name)
        return _json(card)

    def _ready(self, _: Headers) -> Response:
        if self.draining:
            raise unavailable("this replica is shutting down", "draining")
        if not self.shared.pool.ready:
            raise unavailable(
                "no engine is up yet", "no_instance", wait_s=self.shared.pool.out_for_s()
            )
        return Response(200, b"ready\n", "text/plain")

    def _metrics(self, _: Headers) -> Response:
        return self._costly.page("metrics", self._metrics_now)

    def _metrics_now(self) -> Response:
        placer, metrics = self.shared.placer, self.metrics
        show_instances(metrics, placer.predictors, self.shared.pool.instances.values())
        metrics.over_share.set(placer.core.shares.held)
        metrics.late.set(placer.core.yielding.held)
        text = generate_latest(metrics.registry)
        return Response(200, text, CONTENT_TYPE_LATEST)

    def _console_state(self, headers: Headers) -> Response:
        self.shared.api_keys.check_admin(headers)
        return self._costly.page(
            STATE, lambda: _json(console_state(self._status(), self.shared.placer))
        )

    def _explain(self, request_id: str, headers: Headers) -> Response:
        self.shared.api_keys.check_admin(headers)
        placer = self.shared.placer
        trace = placer.traces.find(request_id)
        if trace is None:
            text = f"{self.replica_id} does not remember this request: perhaps it is too long ago"
            raise ApiError(404, text, code="request_not_remembered")
        explanation = {"replica_id": self.replica_id, **explained(trace, placer.core.policy)}
        return Response(200, orjson.dumps(explanation))  # infinite numbers become null

    def _own_status(self, headers: Headers) -> Response:
        tenant = self._tenant(headers)
        return self._costly.page(tenant, lambda: self._status_for(tenant))

    def _status_for(self, tenant: Tenant) -> Response:
        if tenant is NOBODY or (tenant.limits is not None and tenant.limits.admin):
            return _json(self._status())
        own = tenant.own_status(self.shared.in_progress.of(tenant.name))
        status = self._status()
        instances: list[dict[str, object]] = status.pop("instances")  # type: ignore[assignment]
        if tenant.limits is None:
            # A key without a name is mostly the operator's: it sees all but addresses.
            names = {name for each in instances for name in each} - {"url"}
        else:
            names, status = {"instance_id", "healthy"}, {"replica_id": self.replica_id}
        shown = [{name: v for name, v in each.items() if name in names} for each in instances]
        return _json({**status, **own, "instances": shown})

    def _status(self) -> dict[str, object]:
        return {
            "replica_id": self.replica_id,
            "version": __version__,
            "policy": self.shared.placer.core.policy.name,
            "requests_total": self.shared.accepted_total,
            "in_progress": self.shared.in_progress.now,
            **({"discovery_problem": self.discovery.problem} if self.discovery else {}),
            "demand": self.shared.placer.demand(),
            "instances": instance_statuses(self.shared.placer, self.shared.pool.instances.values()),
        }


def _json(value: object) -> Response:
    return Response(200, json.dumps(value).encode())
