"""Reads the short text fields of forms, for placement."""

import re
from collections.abc import Iterator

from foretell.openai.errors import ApiError, invalid

MOST_PARTS = 100
_MOST_FIELD_BYTES = 1000
_MOST_HEAD_BYTES = 4096
_BOUNDARY = re.compile(
    r'multipart/form-data\s*;(?:.*;)?\s*boundary=("[^"]{1,70}"|[^\s;"]{1,70})', re.I
)
_NAME = re.compile(rb'[;\s]name=(?:"([^"]*)"|([^\s;]+))', re.I)
_FILE = re.compile(rb"[;\s]filename\*?=", re.I)


def form_fields(content_type: str, body: bytes) -> dict[str, str]:
    """The short text fields of a form, by name; raises `ApiError`."""
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
