"""Reads engines from one object of Kubernetes: a pod or an EndpointSlice."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

MODELS = "foretell/models"
"""Annotation of pods and EndpointSlices: the models that are served, comma-separated, by the names
that clients ask for; the first is the engine's own, the others are its LoRA adapters."""
_HTTP = re.compile(r"http(?:-(\d+))?$")
_DEFAULT_PORT = 8000
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """One engine, or one rank of an engine whose ranks have ports of their own."""

    name: str
    url: str
    predictor: str = ""
    """ADDRESS:PORT of its predictor; empty: it has none."""
    predictor_by_name: str = ""
    """The same with the host's name, as in certificates; empty: it has no name."""
    model: str = ""
    draining: bool = False
    """It gets no new requests: its pod is no longer ready, or terminates."""


@dataclass(frozen=True, slots=True)
class FoundEndpoints:
    """What was read from one object."""

    endpoints: tuple[EngineEndpoint, ...] = ()
    models: tuple[str, ...] = ()
    """Its models, also if its engines are not ready."""


def of_pod(pod: Mapping[str, Any], before: FoundEndpoints) -> FoundEndpoints:
    """Read the engines in a pod. `before`: what was read from it last.

    An engine that was never ready is left out: it has no requests that it could finish. Ports are
    named `http` and `grpc`, or for ranks `http-0` and `grpc-0` and so on.
    """
    metadata, spec, status = (_part(pod, name) for name in ("metadata", "spec", "status"))
    models = _models(metadata)
    address = str(status.get("podIP") or "")
    if not address or status.get("phase") in _ENDED:
        return FoundEndpoints((), models)
    containers = [*_list(spec, "containers"), *_list(spec, "initContainers")]
    ports = dict(_ports(each for container in containers for each in _list(container, "ports")))
    host = f"{spec.get('hostname')}.{spec['subdomain']}" if spec.get("subdomain") else ""
    found = tuple(_ranks(str(metadata.get("name")), address, host, ports, models))
    ready = any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in _list(status, "conditions")
    )
    return FoundEndpoints(
        _that_serve(found, before, ready and not metadata.get("deletionTimestamp")), models
    )


def of_endpoint_slice(found: Mapping[str, Any], before: FoundEndpoints) -> FoundEndpoints:
    """Read the engines in an EndpointSlice, whose ports are named like those of pods."""
    metadata = _part(found, "metadata")
    models = _models(metadata)
    service = _part(metadata, "labels").get("kubernetes.io/service-name")
    ports = dict(_ports(_list(found, "ports")))
    endpoints: list[EngineEndpoint] = []
    for each in _list(found, "endpoints"):
        addresses = each.get("addresses") or []
        if not isinstance(addresses, list) or not addresses:
            continue
        name = str(_part(each, "targetRef").get("name") or each.get("hostname") or addresses[0])
        host = f"{each['hostname']}.{service}" if each.get("hostname") and service else ""
        ranks = tuple(_ranks(name, str(addresses[0]), host, ports, models))
        conditions = _part(each, "conditions")
        ready = conditions.get("ready") is not False and not conditions.get("terminating")
        endpoints += _that_serve(ranks, before, ready)
    return FoundEndpoints(tuple(endpoints), models)


def _that_serve(
    found: tuple[EngineEndpoint, ...], before: FoundEndpoints, ready: bool
) -> tuple[EngineEndpoint, ...]:
    """All if they are ready; otherwise those that have served at their URL, as draining."""
    if ready:
        return found
    served = {(each.name, each.url) for each in before.endpoints}
    return tuple(replace(e, draining=True) for e in found if (e.name, e.url) in served)


def _ranks(
    name: str, address: str, host: str, ports: Mapping[str, int], models: tuple[str, ...]
) -> Iterator[EngineEndpoint]:
    address = f"[{address}]" if ":" in address else address
    model = models[0] if models else ""
    for port_name, port in (ports or {"http": _DEFAULT_PORT}).items():
        if not (matched := _HTTP.match(port_name)):
            continue
        rank = matched[1]
        predictor = ports.get("grpc" if rank is None else f"grpc-{rank}")
        yield EngineEndpoint(
            name=name if rank is None else f"{name}-rank{rank}",
            url=f"http://{address}:{port}",
            predictor=f"{address}:{predictor}" if predictor else "",
            predictor_by_name=f"{host}:{predictor}" if predictor and host else "",
            model=model,
        )


def _ports(ports: Any) -> Iterator[tuple[str, int]]:
    for each in ports:
        number = each.get("containerPort", each.get("port"))
        if isinstance(number, int):
            yield str(each.get("name") or "http"), number


def _models(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    named = str(_part(metadata, "annotations").get(MODELS) or "").split(",")
    return tuple(filter(None, (name.strip() for name in named)))


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(of: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = of.get(name)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
