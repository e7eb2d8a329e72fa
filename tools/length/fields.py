"""One line of a dataset, checked: every complaint names its field."""

import json
from typing import Any


class Fields:
    """The fields of one JSON object. A field that is null counts as absent."""

    def __init__(self, line: str) -> None:
        """Raises `ValueError`, as all methods do, unless `line` is a JSON object."""
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from error
        if not isinstance(found, dict):
            raise ValueError(f"a JSON object is expected, not {_kind(found)}")
        self._found: dict[str, Any] = {
            name: value for name, value in found.items() if value is not None
        }

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is a string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise ValueError(f"{name}: a string is expected, not {_kind(value)}")
        return value

    def name(self, name: str) -> str:
        """A string or an integer, as a string; "" where it is absent."""
        value = self._found.get(name, "")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(f"{name}: a string or an integer is expected, not {_kind(value)}")
        return str(value)

    def integer(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """An integer of at least `least`; `default` may be less."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name}: an integer is expected, not {_kind(value)}")
        if name in self._found and value < least:
            raise ValueError(f"{name}: at least {least} is expected, not {value}")
        return value

    def flag(self, name: str) -> bool:
        """True, false, 0 or 1; false where it is absent."""
        value = self._found.get(name, False)
        if not isinstance(value, int) or value not in (0, 1):
            raise ValueError(f"{name}: true, false, 0 or 1 is expected, not {_kind(value)}")
        return bool(value)

    def count_of_strings(self, name: str) -> int:
        """How many strings there are: a list of them, one, or none where it is absent."""
        value = self._found.get(name, [])
        if isinstance(value, str):
            return 1
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"{name}: a string or a list of strings is expected")
        return len(value)

    def messages(self, name: str) -> list[tuple[str, str]]:
        """(role, text) of an OpenAI chat; text parts of one message are joined by newlines."""
        value = self._value(name, None)
        if not isinstance(value, list) or not value:
            raise ValueError(f"{name}: a list of messages is expected")
        return [_message(f"{name}[{i}]", message) for i, message in enumerate(value)]

    def _value(self, name: str, default: str | int | None) -> Any:
        value = self._found.get(name, default)
        if value is None:
            raise ValueError(f"{name}: missing")
        return value


def _message(where: str, message: Any) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f"{where}: an object with a role is expected")
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    if not isinstance(content, str):
        raise ValueError(f"{where}.content: text is expected, not {_kind(content)}")
    return message["role"], content


def _kind(value: object) -> str:
    """A value, short enough for a line."""
    shown = json.dumps(value)
    return shown if len(shown) <= 40 else f"{type(value).__name__} {shown[:37]}..."
