"""Reads single fields of a request's body; raises `ApiError` that names the field."""

from typing import Any

from services.scheduler.http.errors import invalid


def integer(body: dict[str, Any], name: str, default: int, *, least: int, most: int) -> int:
    """An integer within these bounds; `default` where it is not given."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise invalid(f"'{name}' must be an integer", name, "invalid_type")
    if not least <= value <= most:
        raise invalid(
            f"'{name}' must be between {least} and {most}, got {value}", name, "invalid_value"
        )
    return value


def boolean(body: dict[str, Any], name: str) -> bool:
    """True or false; false where it is not given."""
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(f"'{name}' must be true or false", name, "invalid_type")
    return value
