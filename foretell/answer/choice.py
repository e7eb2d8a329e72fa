"""What a client has of one choice of a stream, so that another engine can continue it."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

TEXTS = ("content", "reasoning", "reasoning_content", "text")
"""Text fields of a choice or of its delta; the texts of successive events are concatenated."""
_CALL_TEXTS = ("name", "arguments")


class Diverged(Exception):
    """The engine's output differs from what the client already has."""


class _Part(NamedTuple):
    """A piece of text in one event."""

    key: str
    """Which text it belongs to."""
    owner: dict[str, Any]
    """The object that has it in `field`."""
    field: str
    text: str


class Choice:
    """The progress of one choice."""

    def __init__(self) -> None:
        self.is_finished = False
        """The client has the event with its `finish_reason`."""
        self.role_sent = False
        self.ids = array("l")
        """Token ids that the current engine has stated."""
        self._known_ids = array("l")
        self.texts: dict[str, list[str]] = {name: [] for name in TEXTS}
        """Pieces of text by field; those of tool calls by the call's number and field."""
        self.entries = 0
        """Number of tokens whose log probabilities, or ids if asked for, the client has."""
        self._again: dict[str, str] = {}
        self._entries_again = 0

    @property
    def output_ids(self) -> list[int]:
        """The ids of all tokens whose text the client has, and perhaps some more."""
        return (self._known_ids if self.is_behind else self.ids).tolist()

    @property
    def is_behind(self) -> bool:
        """Whether the engine has not yet repeated all that the client has."""
        return bool(self._again) or self._entries_again > 0

    def begin_again(self) -> None:
        """Expect another engine to repeat everything."""
        if self.is_finished:
            return
        self._known_ids, self.ids = array("l", self.output_ids), array("l")
        said = {key: "".join(texts) for key, texts in self.texts.items()}
        self._again = {key: text for key, text in said.items() if text}
        self._entries_again = self.entries

    def take_ids(self, choice: dict[str, Any], delta: dict[str, Any]) -> bool:
        """Note the token ids of an event; False if they are invalid, or if its text lacks them."""
        ids = choice.get("token_ids")
        if not isinstance(ids, list):
            return not any(_parts(delta))
        try:
            self.ids.extend(ids)
        except (TypeError, OverflowError):
            return False
        return True

    def take(self, choice: dict[str, Any], delta: dict[str, Any], *, ids_shown: bool) -> None:
        self.is_finished |= choice.get("finish_reason") is not None
        self.role_sent |= "role" in delta
        for part in _parts(delta):
            self.texts.setdefault(part.key, []).append(part.text)
        self.entries += max(map(len, _by_token(choice, ids_shown=ids_shown)), default=0)

    def take_again(self, choice: dict[str, Any], delta: dict[str, Any], *, ids_shown: bool) -> bool:
        """Remove from an event what the client has; False if nothing is left. Raises `Diverged`."""
        for part in list(_parts(delta)):
            self._leave(part)
        delta.pop("role", None)
        self._leave_calls(delta)
        self._leave_entries(choice, ids_shown=ids_shown)
        finished = choice.get("finish_reason") is not None
        new_texts = any(part.text for part in _parts(delta))
        if (self._again and (new_texts or finished)) or (self._entries_again and finished):
            raise Diverged
        self.is_finished = finished
        return new_texts or finished or any(_by_token(choice, ids_shown=ids_shown))

    def _leave(self, part: _Part) -> None:
        known, text = self._again.pop(part.key, ""), part.text
        if known.startswith(text):
            part.owner[part.field], rest = "", known[len(text) :]
        elif text.startswith(known):
            new, rest = text[len(known) :], ""
            part.owner[part.field] = new
            self.texts.setdefault(part.key, []).append(new)
        else:
            raise Diverged
        if rest:
            self._again[part.key] = rest

    def _leave_calls(self, delta: dict[str, Any]) -> None:
        """Remove tool calls that are empty, and the new ids of calls that the client has."""
        calls = []
        for call in delta.pop("tool_calls", None) or ():
            function = call["function"]
            if not (function.get("name") or function.get("arguments")):
                continue
            if not function.get("name"):
                function.pop("name", None)
                call.pop("id", None)
                call.pop("type", None)
            calls.append(call)
        if calls:
            delta["tool_calls"] = calls

    def _leave_entries(self, choice: dict[str, Any], *, ids_shown: bool) -> None:
        lists = list(_by_token(choice, ids_shown=ids_shown))
        stated = max(map(len, lists), default=0)
        known = min(stated, self._entries_again)
        for each in lists:
            del each[:known]
        self._entries_again -= known
        self.entries += stated - known


def understood(delta: dict[str, Any]) -> bool:
    """Whether the texts and tool calls of an event can be followed."""
    calls = delta.get("tool_calls") or []
    return (
        isinstance(calls, list)
        and all(isinstance(call, dict) and _is_call(call) for call in calls)
        and all(isinstance(delta.get(field, ""), str | None) for field in TEXTS)
    )


def _is_call(call: dict[str, Any]) -> bool:
    return type(call.get("index")) is int and isinstance(call.get("function"), dict)


def _parts(delta: dict[str, Any]) -> Iterator[_Part]:
    for field in TEXTS:
        if isinstance(text := delta.get(field), str) and text:
            yield _Part(field, delta, field, text)
    for call in delta.get("tool_calls") or ():
        function = call["function"]
        for field in _CALL_TEXTS:
            if isinstance(text := function.get(field), str) and text:
                yield _Part(f"{field} of call {call['index']}", function, field, text)


def _by_token(choice: dict[str, Any], *, ids_shown: bool) -> Iterator[list[Any]]:
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        yield from (each for each in logprobs.values() if isinstance(each, list))
    ids = choice.get("token_ids")
    if ids_shown and isinstance(ids, list):
        yield ids


IDS = b'"token_ids":['
"""The bytes before the token ids in an event. No text contains them: its quotes are escaped."""


@dataclass(frozen=True, slots=True)
class Alike:
    """The bytes that successive text events share. Events that match need no parsing, which costs
    more than relaying them; a stream may have millions."""

    choice: Choice
    texts: list[str]
    """The list in `choice.texts` to which they add."""
    head: bytes
    """All before the text."""
    middle: bytes
    """All between text and token ids, from the quote that ends the text."""
    tail: bytes
    """All after the token ids, from the bracket that ends them."""
    hidden: bytes
    """What replaces `middle`, ids and `tail` for the client; empty if it gets the ids."""

    def take(self, line: bytes) -> bytes | None:
        """Note an event and return it as the client gets it; None if it does not match, and nothing
        is noted. This runs for each chunk of a stream."""
        head, tail = self.head, self.tail
        if not (line.startswith(head) and line.endswith(tail)):
            return None
        end = line.find(b'"', len(head))
        if not line.startswith(self.middle, end):
            return None
        text, ids = line[len(head) : end], line[end + len(self.middle) : -len(tail)]
        if not text or b"\\" in text:  # escapes need a JSON parser
            return None
        choice = self.choice
        try:
            said = text.decode()
            if ids.isdigit():  # one id, as usual
                tokens = 1
                choice.ids.append(int(ids))
            else:
                known = [int(each) for each in ids.split(b",")]
                tokens = len(known)
                choice.ids.extend(known)
        except (ValueError, OverflowError):  # left to the JSON parser
            return None
        self.texts.append(said)
        if self.hidden:
            return line[:end] + self.hidden
        choice.entries += tokens
        return line


def alike(
    line: bytes, choice: Choice, stated: dict[str, Any], delta: dict[str, Any], *, ids_shown: bool
) -> Alike | None:
    """Return what the next events of `choice` may share with `line`; None unless `line` only adds
    to a single text."""
    field = "text" if delta is stated else next(iter(delta), "")
    text = delta.get(field)
    is_plain = (delta is stated or len(delta) == 1) and field in TEXTS
    if not is_plain or not isinstance(text, str):
        return None
    name = b'"%b":' % field.encode()
    said = name + orjson.dumps(text)
    start, ids = line.find(said), line.find(IDS)
    if start < 0 or line.count(name) != 1 or line.count(IDS) != 1:
        return None
    end, closing = start + len(said) - 1, line.find(b"]", ids)
    if not end < ids < closing:
        return None
    middle, tail = line[end : ids + len(IDS)], line[closing:]
    hidden = b"" if ids_shown else middle[:-1] + b"null" + tail[1:]
    head = line[: start + len(name) + 1]
    return Alike(choice, choice.texts[field], head, middle, tail, hidden)
