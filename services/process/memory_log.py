"""A ring buffer of messages in memory that processes of one machine share: one writer, any number
of readers.

Writing copies bytes and makes no system call: it wakes no reader and waits for none. Readers poll.
Messages may share their first bytes, the base: it is written once, and later messages write only
the rest. A reader that starts late, or falls behind by the whole log, goes on with the newest
message that was written with its base. The file holds a head of `_HEAD` bytes and then records at
multiples of 16 bytes. A record has its own head (`_RECORD`), then the bytes written of the message.
Positions count all bytes ever written.
"""

import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from zlib import adler32

_SCHEME = "shm://"

_MAGIC = 0x32474F4C54465246
_CAPACITY = 4 << 20
_HEAD = 64
_MAGIC_AT, _RESERVED, _WRITTEN, _NEWEST = range(4)
"""Words of the head: the magic number, up to where the writer may have written, up to where it has,
and where the newest record with a base begins."""
_RECORD = struct.Struct("=IIQ")
"""Length of the bytes that follow, their Adler-32, and how many are the base of later messages."""
_SKIP = 0xFFFF_FFFF  # in place of a length: the rest of the file is unused
_SAME_BASE = 0xFFFF_FFFF  # in place of the base's length: the base of the record before
_ALIGNED = _RECORD.size


def path_of(endpoint: str) -> Path:
    """The path of the file that an endpoint such as shm:///run/engine-0 names; else ValueError."""
    if not endpoint.startswith(_SCHEME):
        raise ValueError(f"a snapshot endpoint is {_SCHEME} and the path of a file, not {endpoint}")
    return Path(endpoint.removeprefix(_SCHEME))


def endpoint_of_rank(endpoint: str, rank: int) -> str:
    """Return the endpoint of one data-parallel rank of an engine that gets `endpoint`."""
    return f"{endpoint}.rank{rank}" if rank else endpoint


class LogWriter:
    """Writes a new file at `path`. Readers of an older one notice that by themselves (`reopen`)."""

    def __init__(self, path: Path, capacity: int = _CAPACITY) -> None:
        """Raises OSError if the file cannot be made."""
        assert capacity % _ALIGNED == 0
        self._path, self._capacity, self._position = path, capacity, 0
        self._base, self._base_at = b"", 0
        handle, made = mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            # Not a sparse file: writing to one on a full disk would kill the engine.
            os.posix_fallocate(handle, 0, _HEAD + capacity)
            self._file = os.fstat(handle).st_ino
            # Map all pages now, so that no step of an engine waits for a page fault.
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self._memory = mmap.mmap(handle, _HEAD + capacity, flags=flags)
            self._words = memoryview(self._memory)[:_HEAD].cast("Q")
            self._words[_MAGIC_AT] = _MAGIC
            os.replace(made, path)
        except OSError:
            Path(made).unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)

    def write(self, rest: bytes, base: bytes = b"") -> None:
        """Append the message `base + rest`; ValueError if it takes more than half of the log.

        The base is written again unless it is the same object as before and its record is recent.
        """
        is_whole = not base or base is not self._base or self._is_old(rest)
        content = base + rest if is_whole else rest
        size = -(-(_RECORD.size + len(content)) // _ALIGNED) * _ALIGNED
        if 2 * size > self._capacity:
            raise ValueError(f"a message of {len(content)} bytes is too long")
        begin = self._position
        at, skipped = begin % self._capacity, 0
        if at + size > self._capacity:
            skipped = self._capacity - at
        # This comes first, so that readers of what is about to be overwritten notice.
        self._words[_RESERVED] = begin + skipped + size
        if skipped:
            _RECORD.pack_into(self._memory, _HEAD + at, _SKIP, 0, 0)
            begin, at = begin + skipped, 0
        body = _HEAD + at + _RECORD.size
        of_base = len(base) if is_whole else _SAME_BASE
        _RECORD.pack_into(self._memory, _HEAD + at, len(content), adler32(content), of_base)
        self._memory[body : body + len(content)] = content
        self._position = begin + size
        if is_whole:
            self._base, self._base_at = base, begin
            self._words[_NEWEST] = begin
        self._words[_WRITTEN] = self._position

    def _is_old(self, rest: bytes) -> bool:
        """Whether the record with the base would be overwritten soon."""
        return self._position + len(rest) - self._base_at > self._capacity // 2

    def close(self) -> None:
        """Remove the file, unless another writer has made it anew."""
        with suppress(OSError):
            if self._path.stat().st_ino == self._file:
                self._path.unlink()
        self._words.release()
        self._memory.close()


class LogReader:
    """Reads the file at `path` from the newest base on. It may be created or replaced later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory: mmap.mmap | None = None
        self._file = 0
        self._position = -1
        self._base = b""

    def reopen(self) -> None:
        """Open the file if it was created or replaced; to be called now and then."""
        try:
            handle = os.open(self._path, os.O_RDONLY)
        except OSError:
            return
        try:
            status = os.fstat(handle)
            if status.st_size > _HEAD and status.st_ino != self._file:
                self.close()
                self._memory = mmap.mmap(handle, status.st_size, prot=mmap.PROT_READ)
                self._file, self._position = status.st_ino, -1
        except (OSError, ValueError):
            self._memory = None
        finally:
            os.close(handle)

    def read(self) -> bytes | None:
        """Return the next message; None if there is none yet."""
        memory = self._memory
        if memory is None:
            return None
        capacity = len(memory) - _HEAD
        magic, reserved, written, newest = struct.unpack_from("=4Q", memory)
        # A reader that took the newest record before `_WRITTEN` counted it is past `written`.
        if magic != _MAGIC or written == 0 or written <= self._position:
            return None
        if self._position < 0 or reserved - self._position > capacity:
            self._position = newest
        begin = self._position
        message = self._record(memory, capacity)
        (reserved,) = struct.unpack_from("=Q", memory, _RESERVED * 8)
        if message is None or reserved - begin > capacity:
            # Overwritten meanwhile: go on with the newest next time.
            self._position = -1
            return None
        return message

    def _record(self, memory: mmap.mmap, capacity: int) -> bytes | None:
        """Read the message at the position and move past it; None if it is not intact."""
        at = self._position % capacity
        length, checksum, of_base = _RECORD.unpack_from(memory, _HEAD + at)
        if length == _SKIP:
            self._position += capacity - at
            at = 0
            length, checksum, of_base = _RECORD.unpack_from(memory, _HEAD)
        body = at + _RECORD.size
        if body + length > capacity:
            return None
        content = memory[_HEAD + body : _HEAD + body + length]
        self._position += -(-(_RECORD.size + length) // _ALIGNED) * _ALIGNED
        if adler32(content) != checksum:
            return None
        if of_base == _SAME_BASE:
            return self._base + content
        self._base = content[:of_base]
        return content

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
