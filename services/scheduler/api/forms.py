"""Single fields of a request's body, and of forms, of which placement reads the short ones."""

import re
from collections.abc import Iterator
from typing import Any

from foretell.services.scheduler.api.errors import ApiError, invalid

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


MOST_PARTS = 100
_MOST_FIELD_BYTES = 1000
_MOST_HEAD_BYTES = 4096
_BOUNDARY = re.compile(
    r'multipart/form-data\s*;(?:.*;)?\s*boundary=("[^"]{1,70}"|[^\s;"]{1,70})', re.I
)
_NAME = re.compile(rb'[;\s]name=(?:"([^"]*)"|([^\s;]+))', re.I)
_FILE = re.compile(rb"[;\s]filename\*?=", re.I)


def form_fields(content_type: str, body: bytes) -> dict[str, str]:
    """The fields of a form that are short texts, by their names; raises `ApiError`."""
    found = _BOUNDARY.match(content_type.strip())
    if found is None:
        raise invalid("the body of your request must be a form, 'multipart/form-data'")
    fields: dict[str, str] = {}
    for head, start, end in _parts(body, b"--" + found[1].strip('"').encode()):
        name = _NAME.search(head)
        if name is None or _FILE.search(head) or end - start > _MOST_FIELD_BYTES:
            continue
        key = (name[1] or name[2] or b"").decode(errors="replace")
        fields.setdefault(key, body[start:end].decode(errors="replace"))
    return fields


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, int, int]]:
    at = body.find(boundary)
    for _ in range(MOST_PARTS + 1):
        at += len(boundary)
        if at < len(boundary) or body.startswith(b"--", at):
            break
        head_end = body.find(b"\r\n\r\n", at, at + _MOST_HEAD_BYTES)
        end = body.find(b"\r\n" + boundary, head_end)
        if head_end < 0 or end < 0:
            raise _broken()
        yield body[at:head_end], head_end + 4, max(end, head_end + 4)
        at = end + 2
    else:
        raise invalid(f"a form has at most {MOST_PARTS} parts", code="form_invalid")
    if at < len(boundary):
        raise _broken()


def _broken() -> ApiError:
    return invalid("this is no valid form", code="form_invalid")
