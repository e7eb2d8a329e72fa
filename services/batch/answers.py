"""Requests, errors and lists in the shape of OpenAI's API."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from foretell.batch.lines import ENDPOINTS
from foretell.openai.errors import ApiError

LONGEST_WINDOW_S = 86_400
_WINDOW = re.compile(r"([1-9][0-9]{0,3})([mh])")
_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]
ModelT = TypeVar("ModelT", bound=BaseModel)


def error_response(error: ApiError) -> web.Response:
    """The error as a response."""
    answer = error.response()
    return web.Response(
        status=answer.status,
        body=answer.body,
        content_type=answer.content_type,
        headers=answer.headers,
    )


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """An error 400: the request itself is wrong."""
    return ApiError(400, message, param, code)


def listed(objects: Sequence[dict[str, Any]], limit: int) -> web.Response:
    """One page of a list. There are more pages if `objects` has more than `limit` objects."""
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
    """The id after which a page begins ("": the first page), and the page's length."""
    given = request.query.get("limit", str(default))
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= most:
        raise invalid(f"'limit' must be between 1 and {most}", "limit")
    return request.query.get("after", ""), int(given)


class FileLifetime(BaseModel):
    """The lifetime of a file, counted from its creation."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000)


class NewBatch(BaseModel):
    """What the creation of a batch asks for."""

    input_file_id: str
    endpoint: Literal[*ENDPOINTS]  # type: ignore[valid-type]
    completion_window: str
    metadata: dict[_Key, _Value] | None = Field(None, max_length=16)
    output_expires_after: FileLifetime | None = None

    @property
    def window_s(self) -> int:
        """The completion window in seconds. OpenAI's API accepts only "24h"."""
        found = _WINDOW.fullmatch(self.completion_window)
        window_s = int(found[1]) * (60 if found[2] == "m" else 3600) if found else 0
        if not 0 < window_s <= LONGEST_WINDOW_S:
            words = "'completion_window' must be '24h', or shorter, such as '90m'"
            raise invalid(words, "completion_window")
        return window_s


def checked(model: type[ModelT], given: bytes | dict[str, str], within: str = "") -> ModelT:
    """Validate what a request gives as `model`. Raises `ApiError`, which names the field with
    `within` as prefix."""
    try:
        if isinstance(given, bytes):
            return model.model_validate_json(given)
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if not first["loc"]:
            text = f"the body of your request must be a JSON object: {first['msg']}"
            raise invalid(text, code="json_invalid") from error
        param = within + ".".join(map(str, first["loc"]))
        code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
        raise invalid(f"'{param}': {first['msg']}", param, code) from error
