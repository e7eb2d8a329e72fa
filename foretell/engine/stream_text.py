"""Estimates how many tokens the events of streams have from their texts, if it is not stated."""

import re
from typing import NamedTuple

_DONE = b"[DONE]\n\n"
"""The end of a stream. Events that are read together with it belong to its last token."""
_NAMES = rb"content|text|reasoning|reasoning_content|arguments"
_TEXT = re.compile(rb'"(?:' + _NAMES + rb')":\s?"((?:[^"\\]|\\.)+)"')
_DELTA = re.compile(rb'"delta":\s?"((?:[^"\\]|\\.)+)"')
_RESPONSES = b'"type":"response.'
"""Found in events of the Responses API. Only their deltas count: the last repeat the whole text."""
_BYTES_PER_TOKEN = 4.0
_SURELY, _SURELY_LEARNT = 2.5, 1.25
"""Events have several tokens if their mean text is that of so many tokens: before the bytes of a
token are learnt, and afterwards."""
_RATE, _QUICK_RATE, _ANOTHER = 1 / 32, 1 / 4, 2.2
"""The mean text of an event is learnt at the slow rate, unless the quick mean differs by the last
factor: then the engine, or a proxy, has changed how it gathers tokens."""
_KEPT = 0.95


class StreamPart(NamedTuple):
    """What was received of a stream at once."""

    events: int = 1
    texts: int = 0
    """Pieces of text, one for each event that has any."""
    text_bytes: int = 0
    stated: float = 0.0
    """Tokens of one sequence so far, as the engine states them; 0: not stated."""


def part_of(data: bytes, stated: float) -> StreamPart:
    """Parse `data` as a part of a stream. Texts are counted only if no tokens are stated."""
    is_last = data.endswith(_DONE)
    events = 1 if is_last else data.count(b"\n\n") or data.count(b"\r\n\r\n")
    if stated:
        return StreamPart(events, stated=stated)
    found = (_DELTA if _RESPONSES in data else _TEXT).findall(data)
    return StreamPart(events, len(found), sum(map(len, found)))


class TextTokens:
    """Learns how many bytes a token has, from streams whose tokens were stated at their end."""

    def __init__(self) -> None:
        self._bytes = self._tokens = 0.0
        self._per_event = self._latest = 0.0
        self.has_several = False
        """Whether events have several tokens; their number is only an estimate then."""

    @property
    def _bytes_per_token(self) -> float:
        return self._bytes / self._tokens if self._tokens else _BYTES_PER_TOKEN

    def tokens(self, part: StreamPart) -> float:
        """The tokens of a part with text: one for each text, unless events have several."""
        self._see(part.text_bytes / part.texts)
        each_bytes = self._bytes_per_token
        least = _SURELY_LEARNT if self._tokens else _SURELY
        self.has_several = self._per_event >= least * each_bytes
        return max(1.0, part.text_bytes / each_bytes) if self.has_several else part.texts

    def _see(self, event_bytes: float) -> None:
        self._latest += _QUICK_RATE * (event_bytes - self._latest)
        if not self._per_event:
            self._per_event = self._latest = event_bytes
        elif self._latest / _ANOTHER < self._per_event < self._latest * _ANOTHER:
            self._per_event += _RATE * (event_bytes - self._per_event)
        else:
            self._per_event = self._latest

    def learn(self, text_bytes: int, tokens: float) -> None:
        """Learn from the totals of a stream."""
        self._bytes = _KEPT * self._bytes + text_bytes
        self._tokens = _KEPT * self._tokens + tokens
