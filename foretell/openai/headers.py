"""Which headers pass between client and engine, and the CORS headers for browsers."""

import re
from collections.abc import Collection, Mapping

_HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that concern one connection only: RFC 9110, section 7.6.1, and older ones."""
RANK_HEADER = "x-data-parallel-rank"
"""Tells vLLM's server the data-parallel rank that a request goes to."""
_NOT_FORWARDED = _HOP_BY_HOP | frozenset(
    (
        *("authorization", "x-api-key", "api-key", "cookie"),  # secrets, not meant for engines
        *("host", "content-length", "content-type", "accept", "accept-encoding", "expect"),
        "x-request-id",  # this one and the line above are set anew
        RANK_HEADER,  # placement chooses the rank
    )
)
_NOT_RETURNED = frozenset(
    name.encode()
    for name in (
        *_HOP_BY_HOP,
        *("content-length", "date", "server", "set-cookie", "x-request-id"),
    )
)
_NO_NAMES: frozenset[str] = frozenset()
_OURS = "x-foretell-"
_OURS_RETURNED = _OURS.encode()
_EMULATED = b"x-foretell-emulated"
_PRINTABLE = re.compile(r"[ -~]*")


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """The client's headers that the engine gets; those that `connection` names are left out."""
    options, named = headers.get("connection", ""), _NO_NAMES
    if options not in ("", "keep-alive"):  # the usual ones
        named = frozenset(each.strip().lower() for each in options.split(","))
    return {
        name: value
        for name, value in headers.items()
        if name not in _NOT_FORWARDED
        and name not in named
        and not name.startswith((_OURS, ":"))
        and _PRINTABLE.fullmatch(value)
    }


def returned(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (name, value)
        for name, value in headers.items()
        if name not in _NOT_RETURNED and (not name.startswith(_OURS_RETURNED) or name == _EMULATED)
    ]


_ANY = "*"
_PREFLIGHT_AGE_S = 600


class Cors:
    """CORS headers for the allowed origins; "*" among them allows all."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(each.rstrip("/") for each in origins)

    def lines(self, headers: Mapping[str, str]) -> bytes:
        """The header lines of an answer that allow the requesting page to read it."""
        origin = headers.get("origin")
        if not origin or not self._origins:
            return b""
        if _ANY in self._origins:
            allowed = b"access-control-allow-origin: *\r\n"
        elif origin in self._origins:
            text = f"access-control-allow-origin: {origin}\r\nvary: origin\r\n"
            allowed = text.encode("latin-1")
        else:
            return b"vary: origin\r\n"
        return allowed + b"access-control-expose-headers: *\r\n"

    def preflight(self, headers: Mapping[str, str], methods: str) -> dict[str, str]:
        """Further headers of a preflight's answer, which allow `methods`; empty if it is none."""
        if "access-control-request-method" not in headers or b"allow" not in self.lines(headers):
            return {}
        wanted = headers.get("access-control-request-headers", "")
        found = {
            "access-control-allow-methods": methods,
            "access-control-max-age": str(_PREFLIGHT_AGE_S),
        }
        # "*" would not include `authorization`.
        return found | ({"access-control-allow-headers": wanted} if wanted else {})
