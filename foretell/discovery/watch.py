"""The list-and-watch protocol of Kubernetes' API, as a reducer: answers in, endpoints out.

Source: "Efficient detection of changes" in Kubernetes' API concepts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from foretell.discovery.endpoints import EngineEndpoint, FoundEndpoints

PAGE = 250
"""The most objects in one page of a list."""
WATCH_S = 60
"""Seconds after which the server ends a watch; one silent for much longer is cut off."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_SHORT_S = 1.0
GONE = 410
_FORGIVEN = 3  # consecutive failures after which everything is listed again

Read = Callable[[Mapping[str, Any], FoundEndpoints], FoundEndpoints]


class ProtocolError(ValueError):
    """The server violated the protocol."""


class Refused(ProtocolError):
    """The server answered with an error."""

    def __init__(self, status: object) -> None:
        super().__init__(f"the API server answers with {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Ask:
    """The next request."""

    parameters: dict[str, str]
    watches: bool
    """Whether the answer is a stream of events, one JSON object a line, or one page of a list."""


@dataclass(slots=True)
class _Listing:
    """A list that is received page by page."""

    found: dict[str, FoundEndpoints] = field(default_factory=dict)
    next_page: str = ""


class Watch:
    """The known engines, and the next request to the API server."""

    def __init__(self, selector: str, read: Read) -> None:
        """`selector`: a label selector. `read`: reads the engines from an object."""
        self.failures = 0
        """Consecutive requests without a result."""
        self._selector = selector
        self._read = read
        self._known: dict[str, FoundEndpoints] = {}
        self._version = ""
        self._listing: _Listing | None = _Listing()

    def ask(self) -> Ask:
        """Return the request that continues where the last one ended."""
        parameters = {"labelSelector": self._selector}
        if self._listing is None:
            watch = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
            return Ask(parameters | watch | {"resourceVersion": self._version}, watches=True)
        parameters["limit"] = str(PAGE)
        if self._listing.next_page:
            parameters["continue"] = self._listing.next_page
        return Ask(parameters, watches=False)

    def list_again(self) -> None:
        """List everything again instead of continuing the watch."""
        self._listing = _Listing()

    def page(self, body: object) -> bool:
        """Process a page of the list, parsed. Return whether endpoints may have changed."""
        listing = self._listing or _Listing()
        metadata = _object(_object(body).get("metadata"))
        items, version = _object(body).get("items"), metadata.get("resourceVersion")
        if not isinstance(items, list) or not isinstance(version, str) or not version:
            raise ProtocolError("a list without items or version")
        for item in items:
            key = _name(_object(item))
            listing.found[key] = self._read(item, self._known.get(key, FoundEndpoints()))
        self.failures = 0
        listing.next_page = str(metadata.get("continue") or "")
        if listing.next_page:
            return False
        # Objects on no page are gone. All change at once, so that no one sees half a list.
        self._known, self._version, self._listing = listing.found, version, None
        return True

    def event(self, line: object) -> bool:
        """Process an event of the watch, parsed. Return whether endpoints may have changed.

        Raises `Refused` for an error that ends the watch.
        """
        kind, changed = _object(line).get("type"), _object(_object(line).get("object"))
        if kind == "ERROR":
            raise Refused(changed.get("code"))
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise ProtocolError(f"an event of the type {kind!r}")
        version = _object(changed.get("metadata")).get("resourceVersion")
        if not isinstance(version, str) or not version:
            raise ProtocolError("an event without a version")
        self.failures = 0
        if kind == "BOOKMARK":
            self._version = version if _is_newer(version, self._version) else self._version
            return False
        key = _name(changed)
        if not _is_newer(version, self._version):
            return False  # a repeated event: an object deleted since must not come back
        before = self._known.get(key, FoundEndpoints())
        self._version = version
        if kind == "DELETED":
            return self._known.pop(key, None) is not None
        found = self._read(changed, before)
        self._known[key] = found
        return found != before

    def ended(self, lasted_s: float) -> None:
        """Note that the server ended its answer regularly, after `lasted_s`."""
        if self._listing is None and lasted_s < _SHORT_S:
            self.failed(ProtocolError("a watch that ends at once"))

    def failed(self, error: Exception) -> None:
        """Note that the answer was an error, broke off, or was not understood."""
        self.failures += 1
        gone = isinstance(error, Refused) and error.status == GONE
        if gone or self._listing is not None or self.failures >= _FORGIVEN:
            self.list_again()

    def pause_s(self, draw: float) -> float:
        """Return the seconds until the next request; `draw` in [0, 1) adds jitter."""
        if not self.failures:
            return 0.0
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self.failures - 1, 16))
        return longest * (0.5 + draw / 2)

    def endpoints(self) -> tuple[EngineEndpoint, ...]:
        """Return all engines, sorted by name. If two objects name the same engine, one that is not
        draining counts, otherwise that of the object with the lower name."""
        found: dict[str, EngineEndpoint] = {}
        for _, known in sorted(self._known.items()):
            for each in known.endpoints:
                other = found.get(each.name)
                if other is None or (other.draining and not each.draining):
                    found[each.name] = each
        return tuple(found[name] for name in sorted(found))

    def models(self) -> tuple[str, ...]:
        """Return all models that objects name, also those of engines that are not ready."""
        return tuple(sorted({name for known in self._known.values() for name in known.models}))


def _object(found: object) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise ProtocolError("not an object")
    return found


def _name(item: Mapping[str, Any]) -> str:
    name = _object(item.get("metadata")).get("name")
    if not isinstance(name, str):
        raise ProtocolError("an object without a name")
    return name


def _is_newer(version: str, than: str) -> bool:
    """Whether a version is newer, as API servers number them upwards; True if not numbers."""
    both = version.isdecimal() and than.isdecimal()
    return not both or int(version) > int(than)
