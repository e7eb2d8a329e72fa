"""Unique ids, and those that clients give."""

import re
import secrets
from collections.abc import Iterator, Mapping
from itertools import count

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def unique_ids() -> Iterator[str]:
    """Unique ids of 32 hexadecimal digits; cheaper than a UUID for each."""
    own = secrets.token_hex(8)
    return (f"{own}{i:016x}" for i in count())


_OWN_IDS = unique_ids()


def request_id_of(headers: Mapping[str, str]) -> str:
    """The client's `X-Request-Id` if it is valid, otherwise a new id."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else next(_OWN_IDS)
