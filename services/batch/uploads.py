"""Receives uploaded files: a multipart form, held in memory only a piece at a time."""

import asyncio
import os
from collections.abc import Awaitable
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar, cast

from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from foretell.openai.errors import ApiError
from foretell.services.batch.advance import FILE_LIFETIME_S
from foretell.services.batch.answers import FileLifetime, checked, invalid
from foretell.services.batch.store import BatchStore, StoredFile, new_id

T = TypeVar("T")
MOST_FILE_BYTES = 200 << 20
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_MOST_FIELD_BYTES = 1024
_MOST_LINES = 1000
"""The most lines of a form outside its parts' contents."""
_PART_S = 60.0
"""Timeout for the next piece of an upload."""
_PIECE_BYTES = 1 << 18


class Upload:
    """One file being received. It ends with `finish` or `abort`; both may block on the disk."""

    def __init__(self, store: BatchStore) -> None:
        self.file_id = new_id("file-", os.urandom(16))
        self._store = store
        self._ending = ExitStack()
        self._draft = self._ending.enter_context(store.storage.writing(self.file_id, "upload"))
        self.write = self._draft.write

    def finish(self, tenant: str, filename: str, lifetime_s: int = FILE_LIFETIME_S) -> StoredFile:
        """Complete the file. Its bytes and its record are durable when this returns."""
        now = self._store.now()
        file = StoredFile(
            id=self.file_id,
            tenant=tenant,
            filename=filename,
            purpose="batch",
            length_bytes=self._draft.length_bytes,
            created_unix_s=now,
            expires_unix_s=now + lifetime_s,
        )
        self._draft.publish()
        self._ending.close()
        with ExitStack() as undone:
            undone.callback(partial(self._store.storage.remove, self.file_id))
            self._store.add_file(file)
            undone.pop_all()
        return file

    def abort(self) -> None:
        """Remove what was written, unless the file was finished."""
        self._ending.close()


class _FewLines:
    """A form's content that bounds the lines read by `readline`: those before and between its
    parts, and those of their headers."""

    def __init__(self, content: StreamReader) -> None:
        self._content = content
        self._left = _MOST_LINES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def readline(self, **bounds: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ValueError("too many lines")
        return await self._content.readline(**bounds)


async def received(
    request: web.Request, store: BatchStore, tenant: str, room_bytes: int
) -> StoredFile:
    """Store the file of a form durably; at most `room_bytes` are taken. Raises `ApiError`."""
    if not request.content_type.startswith("multipart/"):
        raise invalid("a file comes as a form, 'multipart/form-data'", "file")
    upload: Upload | None = None
    filename = ""
    fields: dict[str, str] = {}
    try:
        form = MultipartReader(request.headers, cast(StreamReader, _FewLines(request.content)))
        while (part := await _soon(form.next())) is not None:
            if not isinstance(part, BodyPartReader):
                raise invalid("a form within a form is not understood")
            if part.name == "file" and upload is None:
                filename = part.filename or "file.jsonl"
                upload = await asyncio.to_thread(Upload, store)
                await _take(part, upload, min(room_bytes, MOST_FILE_BYTES))
            elif part.name in _FIELDS:
                fields[str(part.name)] = await _short(part)
            else:
                raise invalid(f"the field '{(part.name or '')[:100]}' is not understood", "file")
        if upload is None:
            raise invalid("'file' is required", "file", "missing_required_parameter")
        lifetime_s = _lifetime_s(fields)
        return await asyncio.to_thread(upload.finish, tenant, filename[:255], lifetime_s)
    except TimeoutError as error:
        raise ApiError(408, f"nothing more of the file came within {_PART_S:.0f} s") from error
    except (ValueError, AssertionError, HttpProcessingError) as error:
        raise invalid("this is no valid form", code="form_invalid") from error
    finally:
        if upload is not None:
            await asyncio.to_thread(upload.abort)


def _lifetime_s(fields: dict[str, str]) -> int:
    """The lifetime in seconds of a file with these fields."""
    if "purpose" not in fields:
        raise invalid("'purpose' is required", "purpose", "missing_required_parameter")
    if fields["purpose"] != "batch":
        raise invalid("'purpose' must be 'batch': no other files are kept here", "purpose")
    names = {"anchor": "expires_after[anchor]", "seconds": "expires_after[seconds]"}
    given = {name: fields[field] for name, field in names.items() if field in fields}
    if not given:
        return FILE_LIFETIME_S
    return checked(FileLifetime, given, "expires_after.").seconds


async def _take(part: BodyPartReader, upload: Upload, most_bytes: int) -> None:
    taken = 0
    while data := await _soon(part.read_chunk(_PIECE_BYTES)):
        taken += len(data)
        if taken > most_bytes:
            text = f"the file has more than {most_bytes} bytes"
            raise ApiError(413, text, "file", "file_too_large")
        await asyncio.to_thread(upload.write, bytes(data))


async def _short(part: BodyPartReader) -> str:
    value = bytearray()
    while data := await _soon(part.read_chunk(_MOST_FIELD_BYTES)):
        value += data
        if len(value) > _MOST_FIELD_BYTES:
            raise invalid(f"'{part.name}' is too long", part.name)
    return value.decode(errors="replace")


async def _soon(coming: Awaitable[T]) -> T:
    async with asyncio.timeout(_PART_S):
        return await coming
