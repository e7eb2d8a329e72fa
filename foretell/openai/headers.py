"""Which headers pass between client and engine, and what browsers are told of other origins."""

import re
from collections.abc import Collection, Mapping

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
_NO_NAMES: frozenset[str] = frozenset()
_OURS = "x-foretell-"
_OURS_RETURNED = _OURS.encode()
_EMULATED = b"x-foretell-emulated"
_PRINTABLE = re.compile(r"[ -~]*")


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """The client's headers that its engine gets; not those that name what they are connected to."""
    options, named = headers.get("connection", ""), _NO_NAMES
    if options not in ("", "keep-alive"):  # as mostly
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
    """The origins that are allowed; any where "*" is among them."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(each.rstrip("/") for each in origins)

    def lines(self, headers: Mapping[str, str]) -> bytes:
        """Header lines that the answer to a request needs so that its page may read it."""
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
        """What the answer to a preflight says besides: a page may send these `methods`."""
        if "access-control-request-method" not in headers or b"allow" not in self.lines(headers):
            return {}
        wanted = headers.get("access-control-request-headers", "")
        found = {
            "access-control-allow-methods": methods,
            "access-control-max-age": str(_PREFLIGHT_AGE_S),
        }
        # "*" would leave out `authorization`.
        return found | ({"access-control-allow-headers": wanted} if wanted else {})
