"""Errors in the shape of OpenAI's API, and of Anthropic's."""

import json
from math import ceil

from foretell.http1.response import Response

LONGEST_RETRY_S = 60.0
"""OpenAI's clients ignore a longer `retry-after` and retry within seconds."""
CLIENT_CLOSED_REQUEST = 499
"""The status that nginx logs for a client that disconnected; it appears only in metrics."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
"""Other statuses are `invalid_request_error` below 500, and `server_error` from there on."""
_ANTHROPIC_TYPES = _TYPES | {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
"""Other statuses are `api_error`."""
_EVENT = b"event: error\ndata: %b\n\n"


class ApiError(Exception):
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
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    def response(self, path: str = "") -> Response:
        """The error as a whole HTTP response, in the format of the API at `path`."""
        return Response(self.status, self._text(path), headers=self.headers)

    def sse_event(self, path: str = "", sequence_number: int = 0) -> bytes:
        """The error as an event of a stream that has begun, in the format of the API at `path`.
        `sequence_number` is its number in the stream, for APIs that number events."""
        if path == "/v1/responses":
            fields = {"message": self.message, "param": self.param, "code": self.code}
            event = {"type": "error", "sequence_number": sequence_number, **fields}
            return _EVENT % json.dumps(event).encode()
        if _is_anthropic(path):
            return _EVENT % self._text(path)
        return b"data: %b\n\n" % self._text(path)

    def _text(self, path: str) -> bytes:
        error: dict[str, object] = {"message": self.message}
        if _is_anthropic(path):
            error["type"] = _ANTHROPIC_TYPES.get(self.status, "api_error")
            body = {"type": "error", "error": error}
        else:
            other = "invalid_request_error" if self.status < 500 else "server_error"
            error["type"] = _TYPES.get(self.status, other)
            body = {"error": {**error, "param": self.param, "code": self.code}}
        # ASCII: a message may quote a client's lone surrogate, which UTF-8 cannot encode.
        return json.dumps(body, separators=(",", ":")).encode()


def _is_anthropic(path: str) -> bool:
    return path.startswith("/v1/messages")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """An error 400: the request itself is wrong."""
    return ApiError(400, message, param, code)


def internal_error() -> ApiError:
    return ApiError(500, "the scheduler failed; see its log", code="internal_error")


def model_not_found(name: str) -> ApiError:
    return ApiError(404, f"The model '{name}' does not exist.", "model", "model_not_found")


def retry_after(wait_s: float) -> dict[str, str]:
    """The header that says when to retry, in whole seconds: after `wait_s`, when room is predicted,
    but after 1 s at least and `LONGEST_RETRY_S` at most."""
    return {"retry-after": str(ceil(min(LONGEST_RETRY_S, max(1.0, wait_s))))}


def unavailable(message: str, code: str, *, wait_s: float = 0.0) -> ApiError:
    """An error 503: the request is fine and may be sent again after `wait_s`."""
    return ApiError(503, message, code=code, headers=retry_after(wait_s))
