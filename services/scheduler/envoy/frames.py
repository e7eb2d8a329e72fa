"""Where HTTP/2 frames end, and what they cost."""

from h2.exceptions import FrameTooLargeError

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_DATA, _HEADERS, _RESET, _SETTINGS, _CONTINUATION = 0, 1, 3, 4, 9
_LONGEST_FRAME_BYTES = 1 << 14
_SLICE_WORK = 32
"""Work of a slice, in frames of the least cost: each takes some 15 us."""
_LARGE_BYTES = 64
CREDIT = 10_000
"""Work that a peer may cause by frames without content, beyond what it earns."""
SMALL_BYTES, COST_OF_SMALL = 32, 4
"""A message below this size costs this much credit; a call needs few such messages."""
EARNED_BY_ANSWER = 32
"""Credit for an answered call: the frames that it may need besides those of content."""


class Frames:
    """The data received from a peer, cut into slices."""

    __slots__ = ("_at", "_data", "_left", "credit")

    def __init__(self) -> None:
        self.credit = CREDIT
        """Work that the peer may still cause. Content and answered calls earn more."""
        self._data, self._at = b"", 0
        self._left = _PREFACE_BYTES

    def add(self, data: bytes) -> None:
        self._data, self._at = self._data[self._at :] + data, 0

    @property
    def waits(self) -> bool:
        unread = len(self._data) - self._at
        return unread >= _HEAD_BYTES or (unread > 0 and self._left > 0)

    def earn(self, credit: int) -> None:
        self.credit = min(CREDIT, self.credit + credit)

    def take(self, streams: int) -> bytes:
        """The next slice: whole frames, or a part of one. `streams`: how many are open. Raises
        `FrameTooLargeError`."""
        data, begin, work = self._data, self._at, 0
        at = begin
        self.credit -= 1
        while work < _SLICE_WORK:
            if not self._left:
                if len(data) - at < _HEAD_BYTES:
                    break
                size = int.from_bytes(data[at : at + 3])
                if size > _LONGEST_FRAME_BYTES:  # `h2` would hold it all before it refuses it
                    raise FrameTooLargeError("a frame is too long")
                work += self._cost(data[at + 3], size, streams)
                self._left = _HEAD_BYTES + size
            part = min(self._left, len(data) - at)
            self._left -= part
            at += part
            if self._left:
                break
        self._at = at
        return data[begin:at]

    def _cost(self, kind: int, size: int, streams: int) -> int:
        if kind == _DATA:
            self.earn(min(4, size // _LARGE_BYTES) - 1)
            return 1 + size // 4096
        work = 1
        if kind in (_HEADERS, _CONTINUATION):
            work = 4 + size // _LARGE_BYTES
        elif kind == _RESET:
            work = 8
        elif kind == _SETTINGS:  # each stream's window changes
            work = 4 + streams // 16
        self.credit -= work
        return work
