"""A log of messages in memory that processes of one machine share: one writes, any number read.

Writing is a copy, and no call of the operating system: nobody is woken and nobody is waited for.
Readers look whether there is more. Whoever falls behind by the whole log goes on with the newest
message. The file holds a head (`_HEAD`) and then records one after another, each at a multiple of
8 bytes: length and Adler-32 of a message, then the message. Positions count all bytes ever written.
"""

import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from zlib import adler32

SHARED_MEMORY = "shm://"
"""Before the path of such a file, where a file or an endpoint of ZMQ's is named."""

_MAGIC = 0x31474F4C54465246
_CAPACITY = 4 << 20
_HEAD = 64
_MAGIC_AT, _RESERVED, _WRITTEN, _NEWEST = range(4)
"""Words of the head: until where the writer may have written, until where it has, and where the
newest record begins."""
_RECORD = struct.Struct("=II")
_SKIP = 0xFFFF_FFFF  # in place of a length: the rest of the file is left out
_ALIGNED = 8


class LogWriter:
    """Makes the file at `path` anew; those who read an older one find out by themselves."""

    def __init__(self, path: Path, capacity: int = _CAPACITY) -> None:
        """OSError where the file cannot be made."""
        assert capacity % _ALIGNED == 0
        self._path, self._capacity, self._position = path, capacity, 0
        handle, made = mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            # Not a file with holes: to write to one on a full disk would end the engine.
            os.posix_fallocate(handle, 0, _HEAD + capacity)
            self._file = os.fstat(handle).st_ino
            self._memory = mmap.mmap(handle, _HEAD + capacity)
            self._words = memoryview(self._memory)[:_HEAD].cast("Q")
            self._words[_MAGIC_AT] = _MAGIC
            os.replace(made, path)
        except OSError:
            Path(made).unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)

    def write(self, message: bytes) -> None:
        """Append `message`; ValueError for one that takes more than half of the log."""
        size = -(-(_RECORD.size + len(message)) // _ALIGNED) * _ALIGNED
        if 2 * size > self._capacity:
            raise ValueError(f"a message of {len(message)} bytes is too long")
        begin = self._position
        at, skipped = begin % self._capacity, 0
        if at + size > self._capacity:
            skipped = self._capacity - at
        # First of all: who reads what is about to be overwritten will find out.
        self._words[_RESERVED] = begin + skipped + size
        if skipped:
            _RECORD.pack_into(self._memory, _HEAD + at, _SKIP, 0)
            begin, at = begin + skipped, 0
        body = _HEAD + at + _RECORD.size
        _RECORD.pack_into(self._memory, _HEAD + at, len(message), adler32(message))
        self._memory[body : body + len(message)] = message
        self._position = begin + size
        self._words[_NEWEST] = begin
        self._words[_WRITTEN] = self._position

    def close(self) -> None:
        """Remove the file, unless another writer has made it anew."""
        with suppress(OSError):
            if self._path.stat().st_ino == self._file:
                self._path.unlink()
        self._words.release()
        self._memory.close()


class LogReader:
    """Reads the file at `path`, from the newest message on; it may come, or be made anew, later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory: mmap.mmap | None = None
        self._file = 0
        self._position = -1

    def reopen(self) -> None:
        """Look whether there is another file by now; to be called now and then."""
        try:
            handle = os.open(self._path, os.O_RDONLY)
        except OSError:
            return
        try:
            told = os.fstat(handle)
            if told.st_size > _HEAD and told.st_ino != self._file:
                self.close()
                self._memory = mmap.mmap(handle, told.st_size, prot=mmap.PROT_READ)
                self._file, self._position = told.st_ino, -1
        except (OSError, ValueError):
            self._memory = None
        finally:
            os.close(handle)

    def read(self) -> bytes | None:
        """The next message; None where there is none yet."""
        memory = self._memory
        if memory is None:
            return None
        capacity = len(memory) - _HEAD
        magic, reserved, written, newest = struct.unpack_from("=4Q", memory)
        # Who took the newest record before `_WRITTEN` told of it already stands beyond `written`.
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
        """The message at the position, which then stands behind it; None where there is none."""
        at = self._position % capacity
        length, checksum = _RECORD.unpack_from(memory, _HEAD + at)
        if length == _SKIP:
            self._position += capacity - at
            at = 0
            length, checksum = _RECORD.unpack_from(memory, _HEAD)
        body = at + _RECORD.size
        if body + length > capacity:
            return None
        message = memory[_HEAD + body : _HEAD + body + length]
        self._position += -(-(_RECORD.size + length) // _ALIGNED) * _ALIGNED
        return message if adler32(message) == checksum else None

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
