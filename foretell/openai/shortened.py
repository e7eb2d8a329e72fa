"""Shortens a long body to what placement reads: the middles of images and other data in strings are
dropped, and text that is longer than any context. The engine gets the whole body.

Parsing 40 MB at once blocks all other requests for 200 ms; a `Cutter` scans them in parts.
"""

import re
from typing import NamedTuple

from foretell.openai.errors import ApiError, invalid

LARGE_BYTES = 1 << 18
"""Shorter bodies are parsed whole."""
MOST_TEXT = 4 << 20
"""The most bytes of droppable text that are kept: no context is as long."""
MOST_READ_BYTES = 16 << 20
"""The most bytes of a shortened body."""
MOST_WORK = 20_000_000
"""The most `work_of` a shortened body: parsing it blocks all other requests for 50 ms. A million
token ids are less."""
_WINDOW_BYTES = 1 << 16
_PAUSE_BYTES = 1 << 18
"""Bytes to scan before other requests get their turn."""
_LONGEST_ESCAPE = 6
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


class Short(NamedTuple):
    """What placement reads of a long body."""

    text: bytes
    work: int
    """`work_of` all of it except the contents of strings."""


def work_of(text: bytes) -> int:
    """The estimated time to parse JSON, in units of about 3 ns: keys, objects and arrays take
    longer than strings, strings longer than numbers, and numbers longer than characters."""
    things = text.count(b":") + text.count(b"{") + text.count(b"[")
    return len(text) + 8 * text.count(b",") + 16 * text.count(b'"') + 128 * things


def too_much() -> ApiError:
    text = "your request has too many objects, arrays and values"
    return invalid(text, code="request_too_large")


class Cutter:
    """Scans a body window by window. A window that lies wholly inside a string may be dropped."""

    def __init__(self, body: bytes, window_bytes: int = _WINDOW_BYTES) -> None:
        self.kept: list[memoryview] = []
        self.work = 0
        self._body, self._at = body, 0
        self._window_bytes = window_bytes
        self._in_string = False
        self._text_bytes = MOST_TEXT

    def go_on(self) -> bool:
        """Scan the next part; return whether the end is reached. Raises `ApiError` if the work so
        far is more than `MOST_WORK`."""
        until = min(len(self._body), self._at + _PAUSE_BYTES)
        while self._at < until:
            self._take()
        if self.work > MOST_WORK:
            raise too_much()
        return self._at >= len(self._body)

    def short(self) -> Short:
        """The shortened body, after the whole body has been scanned. It has every key and value,
        and is JSON only if the body is; but strings longer than a window may lack parts, which are
        not checked. Raises `ApiError` if it is longer than `MOST_READ_BYTES`."""
        kept_bytes = sum(map(len, self.kept))
        if kept_bytes > MOST_READ_BYTES:
            raise too_much()
        is_cut = kept_bytes < len(self._body)
        return Short(b"".join(self.kept) if is_cut else self._body, self.work)

    def _take(self) -> None:
        begin, end = self._at, min(len(self._body), self._at + self._window_bytes)
        for _ in range(3):  # do not cut within a UTF-8 character
            if end < len(self._body) and self._body[end] & 0xC0 == 0x80:
                end -= 1
        window = self._body[begin:end]
        # The same length. The backslashes that are left begin other escapes.
        masked = window.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in window else window
        if end < len(self._body):
            cut = masked.rfind(b"\\", -_LONGEST_ESCAPE)  # do not cut within an escape
            cut = cut if cut > 0 else len(window)
            if _HIGH_SURROGATE.fullmatch(masked, cut - _LONGEST_ESCAPE, cut):
                cut -= _LONGEST_ESCAPE  # nor within a surrogate pair
            window, end = window[:cut], begin + cut
        between = masked[: len(window)].split(b'"')
        self.work += work_of(b'""'.join(between[self._in_string :: 2]))
        if not self._in_string or len(between) > 1 or self._keep(window):
            self.kept.append(memoryview(self._body)[begin:end])
        self._in_string ^= len(between) % 2 == 0
        self._at = end

    def _keep(self, window: bytes) -> bool:
        """Whether a window inside a string is text, as far as its limit is not reached."""
        if window.isascii() and b" " not in window:
            return False
        self._text_bytes -= len(window)
        return self._text_bytes >= 0
