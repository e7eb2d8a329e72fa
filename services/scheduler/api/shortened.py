"""A long body without what placement does not read of it: the middles of pictures and of other data
in texts, and whatever is longer than any context. The engine gets the body as it came.

To make objects of 40 MB at once holds everyone else up for 200 ms; this goes over them in parts.
"""

import asyncio
import re

LARGE_BYTES = 1 << 18
"""Shorter bodies are read as they are."""
MOST_TEXT = 4 << 20
"""Bytes of text that are kept where it could be left out: no context is as long."""
_WINDOW_BYTES = 1 << 16
_PAUSE_BYTES = 1 << 20
"""Others get their turn after so much."""
_LONGEST_ESCAPE = 6
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


async def shortened(body: bytes) -> bytes:
    """JSON that has what placement reads of `body`, if that is JSON. It has every key and value,
    and is JSON only if `body` is, but for strings longer than a window, which may lack parts."""
    if len(body) <= LARGE_BYTES:
        return body
    cutter = Cutter(body)
    while not cutter.go_on():  # noqa: ASYNC110 - nobody else would tell
        await asyncio.sleep(0)
    return b"".join(cutter.kept)


class Cutter:
    """Goes over a body, window by window: one without a quote, inside of a string, can go."""

    def __init__(self, body: bytes, window_bytes: int = _WINDOW_BYTES) -> None:
        self.kept: list[bytes] = []
        self._body, self._at = body, 0
        self._window_bytes = window_bytes
        self._in_string = False
        self._text_bytes = MOST_TEXT

    def go_on(self) -> bool:
        """Go over some of it; whether it has come to the end."""
        until = min(len(self._body), self._at + _PAUSE_BYTES)
        while self._at < until:
            self._take()
        return self._at >= len(self._body)

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
        quotes = masked.count(b'"', 0, len(window))
        if not self._in_string or quotes or self._keep(window):
            self.kept.append(window)
        self._in_string ^= bool(quotes & 1)
        self._at = end

    def _keep(self, window: bytes) -> bool:
        """Whether a window inside of a string is text, and there was not too much of it."""
        if window.isascii() and b" " not in window:
            return False
        self._text_bytes -= len(window)
        return self._text_bytes >= 0
