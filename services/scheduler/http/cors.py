"""Which pages of other origins may call from a browser, as the Fetch standard has it."""

from collections.abc import Collection, Mapping

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
