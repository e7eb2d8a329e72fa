"""Describes the scheduler's API, for programs at `/openapi.json` and for people at `/docs`.

It describes the fields of a body that placement reads. All other fields are the engine's, and are
described in the engine's own `/docs`.
"""

import html
import json
from typing import Any

from pydantic.json_schema import models_json_schema

from foretell import __version__
from foretell.http1.response import Response
from foretell.openai.surface import ENDPOINTS, Endpoint

_PAGES = {
    "/v1/models": "The models that may be asked for.",
    "/v1/models/{model}": "One of them.",
    "/v1/responses/{response_id}": "A response that an engine keeps.",
    "/health": "Whether this process serves.",
    "/ready": "Whether an engine is up.",
    "/status": "Engines and requests in progress.",
    "/metrics": "Metrics in Prometheus' format.",
    "/explain/{request_id}": "Why a request went where it went.",
}
_SCHEMA = "#/components/schemas/{model}"
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}


def described() -> dict[str, Response]:
    """The pages that describe the API, by path."""
    description = openapi()
    as_json = Response(200, json.dumps(description).encode())
    as_html = Response(200, _page(description).encode(), "text/html; charset=utf-8", _HEADERS)
    return {"/openapi.json": as_json, "/docs": as_html}


def openapi() -> dict[str, Any]:
    """The endpoints as a document of OpenAPI 3.1."""
    paths: dict[str, Any] = {each.path: {"post": _operation(each)} for each in ENDPOINTS.values()}
    for path, text in _PAGES.items():
        paths[path] = {"get": {"summary": text, "responses": {"200": {"description": "OK"}}}}
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        if names:
            paths[path]["get"]["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in names
            ]
    models = {each.fields for each in ENDPOINTS.values()}
    _, schemas = models_json_schema([(m, "validation") for m in models], ref_template=_SCHEMA)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Foretell", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    kind = "multipart/form-data" if endpoint.is_form else "application/json"
    placed = "by prediction" if endpoint.generates else "by load"
    body = {"schema": {"$ref": _SCHEMA.format(model=endpoint.fields.__name__)}}
    return {
        "summary": f"Answered by an engine that serves the model, placed {placed}.",
        "requestBody": {"required": True, "content": {kind: body}},
        "responses": {
            "200": {"description": "The engine's answer"},
            "default": {"description": "An error in the shape of the API"},
        },
    }


def _page(description: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{method.upper()} {html.escape(path)}</code></td>"
        f"<td>{html.escape(operation['summary'])}</td></tr>"
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Foretell</title></head>'
        f"<body><h1>Foretell {__version__}</h1><p>For programs: "
        f'<a href="/openapi.json">/openapi.json</a></p><table>{rows}</table></body></html>'
    )
