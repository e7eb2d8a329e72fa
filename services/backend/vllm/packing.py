"""Writes parts of serialized protobuf messages without creating the messages.

In an engine's hot loop, a message object costs several times as much as writing its bytes.
"""

import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_LENGTH_FIRST = 2
# Wire type and letter of `struct` for the types of a fixed width.
_FIXED = {
    FieldDescriptor.TYPE_DOUBLE: (1, "d"),
    FieldDescriptor.TYPE_FIXED64: (1, "Q"),
    FieldDescriptor.TYPE_FIXED32: (5, "I"),
    FieldDescriptor.TYPE_SFIXED32: (5, "i"),
}


class FixedFields:
    """Writes fields of fixed width of a message, all in one call."""

    def __init__(self, message: type[Message], *names: str) -> None:
        """KeyError where a field is of another type."""
        fields = [message.DESCRIPTOR.fields_by_name[name] for name in names]
        kinds = [_FIXED[field.type] for field in fields]
        self._tags = [_tag(f.number, wire) for f, (wire, _) in zip(fields, kinds, strict=True)]
        self._letters = [letter for _, letter in kinds]
        self._prepare()

    def then(self, message: type[Message], name: str, inner: "FixedFields") -> None:
        """Write `inner`, the message in field `name` of `message`, after the other fields."""
        before = length_first(message, name) + varint(inner.size)
        self._tags += [before + inner._tags[0], *inner._tags[1:]]
        self._letters += inner._letters
        self._prepare()

    def _prepare(self) -> None:
        pairs = zip(self._tags, self._letters, strict=True)
        self._struct = struct.Struct("<" + "".join(f"{len(tag)}s{letter}" for tag, letter in pairs))
        self._values: list[Any] = [0] * (2 * len(self._tags))
        self._values[::2] = self._tags
        self.size = self._struct.size
        """Size of the output in bytes."""

    def pack(self, *values: float) -> bytes:
        """The fields with these values; struct.error where one does not fit."""
        mixed = self._values
        mixed[1::2] = values
        return self._struct.pack(*mixed)


def length_first(message: type[Message], name: str) -> bytes:
    """The tag of a field that is a message, which goes before its length."""
    return _tag(message.DESCRIPTOR.fields_by_name[name].number, _LENGTH_FIRST)


def sized(content: bytes) -> bytes:
    """`content` with its length before it."""
    return varint(len(content)) + content


def varint(number: int) -> bytes:
    """A number that is not negative, as protobuf writes it."""
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def _tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)
