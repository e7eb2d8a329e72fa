"""A long body without what placement does not read of it: the middles of pictures and of other data
in texts, and whatever is longer than any context. The engine gets the body as it came.

To make objects of 40 MB at once holds everyone else up for 200 ms; this goes over them in parts.
"""

import re
from typing import NamedTuple

from foretell.openai.errors import ApiError, invalid

LARGE_BYTES = 1 << 18
"""Shorter bodies are read as they are."""
MOST_TEXT = 4 << 20
"""Bytes of text that are kept where it could be left out: no context is as long."""
MOST_READ_BYTES = 16 << 20
"""Of a body, without the middles of its images and of texts that are too long."""
MOST_WORK = 20_000_000
"""Of what is read at once, by `work_of`: 50 ms in which everyone else waits. A million token ids
are less."""
_WINDOW_BYTES = 1 << 16
_PAUSE_BYTES = 1 << 18
"""Others get their turn after so much."""
_LONGEST_ESCAPE = 6
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


class Short(NamedTuple):
    """What placement reads of a long body."""

    text: bytes
    work: int
    """`work_of` all that is no text in it."""


def work_of(text: bytes) -> int:
    """What it takes to make values of JSON, in some 3 ns: keys, objects and arrays take longer than
    strings, those longer than numbers, and those longer than what stands in them."""
    things = text.count(b":") + text.count(b"{") + text.count(b"[")
    return len(text) + 8 * text.count(b",") + 16 * text.count(b'"') + 128 * things


def too_much() -> ApiError:
    text = "your request has too many objects, arrays and values"
    return invalid(text, code="request_too_large")


class Cutter:
    """Goes over a body, window by window: one without a quote, inside of a string, can go."""

    def __init__(self, body: bytes, window_bytes: int = _WINDOW_BYTES) -> None:
        self.kept: list[memoryview] = []
        self.work = 0
        self._body, self._at = body, 0
        self._window_bytes = window_bytes
        self._in_string = False
        self._text_bytes = MOST_TEXT

    def go_on(self) -> bool:
        """Go over some of it; whether it has come to the end. Raises `ApiError` where what is left
        is more than `MOST_WORK`."""
        until = min(len(self._body), self._at + _PAUSE_BYTES)
        while self._at < until:
            self._take()
        if self.work > MOST_WORK:
            raise too_much()
        return self._at >= len(self._body)

    def short(self) -> Short:
        """JSON that has what placement reads of the body, once that was gone over, if it is JSON.
        It has every key and value, and is JSON only if the body is, but for strings longer than a
        window, which may lack parts. Raises `ApiError` where it is more than `MOST_READ_BYTES`."""
        kept_bytes = sum(map(len, self.kept))
        if kept_bytes > MOST_READ_BYTES:
            raise too_much()
        is_cut = kept_bytes < len(self._body)
        return Short(b"".join(self.kept) if is_cut else self._body, self.work)

    def _take(self) -> None:
        begin, end = self._at, min(len(self._body), self._at + self._window_bytes)
        for _ in range(3):  # not within a character
            if end < len(self._body) and self._body[end] & 0xC0 == 0x80:
                end -= 1
        window = self._body[begin:end]
        # Of the same length: the backslashes that are left begin escapes.
        masked = window.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in window else window
        if end < len(self._body):
            cut = masked.rfind(b"\\", -_LONGEST_ESCAPE)  # not within an escape
            cut = cut if cut > 0 else len(window)
            if _HIGH_SURROGATE.fullmatch(masked, cut - _LONGEST_ESCAPE, cut):
                cut -= _LONGEST_ESCAPE  # nor between two that are one character
            window, end = window[:cut], begin + cut
        between = masked[: len(window)].split(b'"')
        self.work += work_of(b'""'.join(between[self._in_string :: 2]))
        if not self._in_string or len(between) > 1 or self._keep(window):
            self.kept.append(memoryview(self._body)[begin:end])
        self._in_string ^= len(between) % 2 == 0
        self._at = end

    def _keep(self, window: bytes) -> bool:
        """Whether a window inside of a string is text, and there was not too much of it."""
        if window.isascii() and b" " not in window:
            return False
        self._text_bytes -= len(window)
        return self._text_bytes >= 0
