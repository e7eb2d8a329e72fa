"""Errors and lists in the shape of OpenAI's API."""

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class AnswerRefused(Exception):
    """An error that the client sees; `param` names the field of the request that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.param, self.code = param, code
        self.headers = headers or {}

    def response(self) -> web.Response:
        """The error as a response."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": self.message,
            "type": _TYPES.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return web.json_response({"error": error}, status=self.status, headers=self.headers)


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> AnswerRefused:
    """An error 400: the request itself is wrong."""
    return AnswerRefused(400, message, param, code)


def listed(objects: Sequence[dict[str, Any]], limit: int) -> web.Response:
    """One page of a list, of which one object more than the `limit` was looked up."""
    data = objects[:limit]
    page = {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(objects) > limit,
    }
    return web.json_response(page)


def page_of(request: web.Request, *, most: int, default: int) -> tuple[str, int]:
    """The object behind which a page begins ("": the first page), and its length."""
    given = request.query.get("limit", str(default))
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= most:
        raise invalid(f"'limit' must be between 1 and {most}", "limit")
    return request.query.get("after", ""), int(given)


def json_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in a request's body."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise invalid("the body of your request is not valid JSON", code="json_invalid") from error
    if not isinstance(body, dict):
        raise invalid("the body of your request must be a JSON object", code="json_invalid")
    return body


def lifetime_s(anchor: object, seconds: object, param: str) -> int:
    """The lifetime of a file, counted from its creation."""
    if anchor != "created_at":
        raise invalid(f"'{param}.anchor' must be 'created_at'", f"{param}.anchor")
    text = str(seconds)
    if not text.isascii() or not text.isdigit() or not 3600 <= int(text) <= 2_592_000:
        where = f"{param}.seconds"
        raise invalid(f"'{where}' must be between 3600 and 2592000", where)
    return int(text)
