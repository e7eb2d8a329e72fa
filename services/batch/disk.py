"""Storage of files, here in a folder: a file exists whole and durable, or not at all."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO, Protocol

from foretell.services.process.database import Notice, unnoticed
from foretell.services.process.folders import private_folder

_PART = ".part"
NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
"""The pattern of file ids."""


class Storage(Protocol):
    """Files by their ids. Methods raise OSError on failure."""

    def writing(self, file_id: str, writer: str) -> AbstractContextManager["Draft"]:
        """A draft of a file. If the block calls `publish`, the draft becomes the file and replaces
        an older one with this id; otherwise it is removed. `writer` distinguishes writers that may
        write the same file at once."""
        ...

    def opened(self, file_id: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for reading from its beginning."""
        ...

    def read(self, file_id: str, begin_bytes: int, length_bytes: int) -> bytes:
        """A part of a file; shorter if the file ends within it."""
        ...

    def remove(self, file_id: str) -> None:
        """Remove a file, if it is there."""
        ...

    def clean(self, known: Callable[[str], bool], before_unix_s: float) -> None:
        """Remove files and drafts last written before this time whose names are not `known`."""
        ...


class Disk:
    """Files in one folder, by their ids."""

    def __init__(self, folder: Path, notice: Notice = unnoticed) -> None:
        self._folder = folder
        self._notice = notice
        private_folder(folder)

    def path(self, file_id: str) -> Path:
        """The path of the file with this id."""
        assert NAME.fullmatch(file_id), "ids are ours"
        return self._folder / file_id

    @contextlib.contextmanager
    def writing(self, file_id: str, writer: str) -> Iterator["Draft"]:
        part = self.path(file_id).with_name(f"{file_id}.{writer}{_PART}")
        with part.open("wb", buffering=0) as file:
            draft = Draft(file, self._notice)
            try:
                yield draft
                if draft.published:
                    self._publish(part, self.path(file_id), file)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        if not draft.published:
            part.unlink(missing_ok=True)

    def _publish(self, part: Path, path: Path, file: RawIOBase) -> None:
        self._notice("fsync")
        os.fsync(file.fileno())
        self._notice("rename")
        part.replace(path)
        self._notice("fsync folder")
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def opened(self, file_id: str) -> BinaryIO:
        return self.path(file_id).open("rb")

    def read(self, file_id: str, begin_bytes: int, length_bytes: int) -> bytes:
        file = os.open(self.path(file_id), os.O_RDONLY)
        try:
            return os.pread(file, length_bytes, begin_bytes)
        finally:
            os.close(file)

    def remove(self, file_id: str) -> None:
        self._notice("remove")
        self.path(file_id).unlink(missing_ok=True)

    def clean(self, known: Callable[[str], bool], before_unix_s: float) -> None:
        for path in self._folder.iterdir():
            if path.stat().st_mtime < before_unix_s and not known(path.name):
                path.unlink(missing_ok=True)


class Draft:
    """A file that is being written."""

    def __init__(self, file: RawIOBase, notice: Notice) -> None:
        self._file = file
        self._notice = notice
        self.length_bytes = 0
        self.published = False

    def write(self, data: bytes) -> None:
        """Append `data`, which should be large: nothing is buffered. Raises OSError."""
        view = memoryview(data)
        while view:
            self._notice("write")
            view = view[self._file.write(view) or 0 :]
        self.length_bytes += len(data)

    def publish(self) -> None:
        """Mark the draft as complete: it becomes the file when the `writing` block ends."""
        self.published = True
