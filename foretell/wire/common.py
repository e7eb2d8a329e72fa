"""What the conversions of all messages use."""

from collections.abc import Iterable
from typing import Any


class WireError(ValueError):
    """A message that decodes as protobuf but contradicts itself."""


def fields_of(source: object, names: Iterable[str]) -> dict[str, Any]:
    """The fields `names` of a data type or message; for fields that have the same name in both."""
    return {name: getattr(source, name) for name in names}
