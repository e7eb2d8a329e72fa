"""Which headers pass between client and engine: all but those that are not for the other side."""

import re
from collections.abc import Mapping

from foretell.services.scheduler.ids import unique_ids

_OWN_IDS = unique_ids()
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""RFC 9110, section 7.6.1, and older ones: they are about one connection."""
RANK_HEADER = "x-data-parallel-rank"
"""By which vLLM's server is told the rank that a request goes to."""
_NOT_FORWARDED = _HOP_BY_HOP | frozenset(
    (
        *("authorization", "x-api-key", "api-key", "cookie"),  # whose secrets they are is known
        *("host", "content-length", "content-type", "accept", "accept-encoding", "expect"),
        "x-request-id",  # these and the former are written anew
        RANK_HEADER,  # requests are placed
    )
)
_NOT_RETURNED = frozenset(
    name.encode()
    for name in (
        *_HOP_BY_HOP,
        *("content-length", "date", "server", "set-cookie", "x-request-id"),
    )
)
_OURS = "x-foretell-"
_OURS_RETURNED = _OURS.encode()
_EMULATED = b"x-foretell-emulated"
_PRINTABLE = re.compile(r"[ -~]*")


def request_id_of(headers: Mapping[str, str]) -> str:
    """The client's own id where it can be one, otherwise a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else next(_OWN_IDS)


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """The client's headers that its engine gets; not those that name what they are connected to."""
    options = headers.get("connection", "")
    named = {each.strip().lower() for each in options.split(",")} if options else ()
    return {
        name: value
        for name, value in headers.items()
        if name not in _NOT_FORWARDED
        and name not in named
        and not name.startswith((_OURS, ":"))
        and _PRINTABLE.fullmatch(value)
    }


def returned(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """The engine's headers that the client gets."""
    return [
        (name, value)
        for name, value in headers.items()
        if name not in _NOT_RETURNED and (not name.startswith(_OURS_RETURNED) or name == _EMULATED)
    ]
