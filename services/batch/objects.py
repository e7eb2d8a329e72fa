"""Files in object storage: S3, compatible services, or anything else that fsspec supports."""

import contextlib
import io
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, BinaryIO, cast

import fsspec

from foretell.services.batch.disk import NAME, Draft
from foretell.services.process.database import Notice, unnoticed

_PART_BYTES = 8 << 20
"""Bytes of a file held in memory while it is written; S3 takes parts of 5 MiB or more."""
_AHEAD_BYTES = 1 << 20


class Objects:
    """Files under one URL, such as s3://bucket/folder, by their ids.

    A file exists, whole and durable, once its upload is committed. Unfinished uploads of killed
    processes are invisible; the bucket's lifecycle rule for incomplete uploads removes them.
    """

    def __init__(self, url: str, notice: Notice = unnoticed) -> None:
        """Credentials are found as the storage's own clients find them. Raises OSError."""
        self._notice = notice
        with _failing():
            # Other processes write there, too, so cached listings would be stale.
            found = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        self._objects: Any = found[0]
        self._folder = str(found[1]).rstrip("/")

    def _path(self, file_id: str) -> str:
        assert NAME.fullmatch(file_id), "ids are ours"
        return f"{self._folder}/{file_id}"

    @contextlib.contextmanager
    def writing(self, file_id: str, writer: str) -> Iterator[Draft]:
        del writer  # concurrent uploads of one file are separate
        with _failing():
            made = self._objects.open(
                self._path(file_id), "wb", block_size=_PART_BYTES, autocommit=False
            )
        draft = Draft(_Sink(made), self._notice)
        try:
            yield draft
            if draft.published:
                with _failing():
                    self._notice("upload")
                    made.close()
                    self._notice("commit upload")
                    made.commit()
        except BaseException:
            _discard(made)
            raise
        if not draft.published:
            _discard(made)

    @contextlib.contextmanager
    def opened(self, file_id: str) -> Iterator[BinaryIO]:
        with _failing(), self._objects.open(self._path(file_id), "rb") as file:
            yield cast(BinaryIO, io.BufferedReader(file, _AHEAD_BYTES))

    def read(self, file_id: str, begin_bytes: int, length_bytes: int) -> bytes:
        path = self._path(file_id)
        with _failing():
            data = self._objects.cat_file(path, start=begin_bytes, end=begin_bytes + length_bytes)
        return bytes(data)

    def remove(self, file_id: str) -> None:
        self._notice("remove")
        with _failing(), contextlib.suppress(FileNotFoundError):
            self._objects.rm_file(self._path(file_id))

    def clean(self, known: Callable[[str], bool], before_unix_s: float) -> None:
        with _failing():
            found = self._objects.find(self._folder, detail=True, maxdepth=1)
            for path, details in found.items():
                name = str(path).rpartition("/")[2]
                if not known(name) and _written_unix_s(details) < before_unix_s:
                    self._objects.rm_file(path)


class _Sink(io.RawIOBase):
    """An upload as a writable file whose failures raise OSError."""

    def __init__(self, upload: Any) -> None:
        self._upload = upload

    def write(self, data: Any) -> int:
        with _failing():
            return int(self._upload.write(data))


def _discard(upload: Any) -> None:
    """Abandon an upload. If that fails, the bucket's lifecycle rule removes it."""
    with contextlib.suppress(Exception):
        upload.discard()
    upload.closed = True  # or garbage collection would close it again


def _written_unix_s(details: dict[str, Any]) -> float:
    written = details.get("LastModified") or details.get("mtime") or details["created"]
    return written.timestamp() if isinstance(written, datetime) else float(written)


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """Turn all errors of an object storage client into OSError."""
    try:
        yield
    except (OSError, AssertionError):
        raise
    except Exception as error:
        raise OSError(f"object storage: {type(error).__name__}: {error}") from error
