"""What messages have in common."""

from collections.abc import Iterable
from typing import Any


class WireError(ValueError):
    """A message that decodes as protobuf but contradicts itself."""


def fields_of(source: object, names: Iterable[str]) -> dict[str, Any]:
    """Those fields of a noun or a message, where both call them alike."""
    return {name: getattr(source, name) for name in names}
