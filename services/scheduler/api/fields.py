"""Reads single fields of a request's body as vLLM does, which takes numbers and truth values in
other forms, too; raises `ApiError` that names the field."""

import re
from typing import Any

from foretell.services.scheduler.api.errors import invalid

_TRUE = (1, "1", "true", "t", "yes", "y", "on")
_FALSE = (0, "0", "false", "f", "no", "n", "off")
"""What pydantic takes for truth values."""
_LONGEST_NUMBER = 30
_NUMBER = re.compile(r"[+-]?[0-9]+")


def integer(body: dict[str, Any], name: str, default: int, *, least: int, most: int) -> int:
    """An integer within these bounds; `default` where it is not given."""
    given = body.get(name)
    if given is None:
        return default
    value = _integer(given)
    if value is None:
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
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else value
    if isinstance(word, str | int | float) and word in _TRUE:
        return True
    if isinstance(word, str | int | float) and word in _FALSE:
        return False
    raise invalid(f"'{name}' must be true or false", name, "invalid_type")


def _integer(value: object) -> int | None:
    """The number that pydantic takes a value for; None: it takes it for none."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    text = value.strip() if isinstance(value, str) and len(value) <= _LONGEST_NUMBER else ""
    return int(text) if _NUMBER.fullmatch(text) else None
