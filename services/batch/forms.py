"""Uploads: a form with a file of any length, in memory only a piece at a time."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from aiohttp import BodyPartReader, web

from foretell.services.batch.advance import FILE_LIFETIME_S
from foretell.services.batch.answers import AnswerRefused, invalid, lifetime_s
from foretell.services.batch.store import BatchStore, StoredFile
from foretell.services.batch.uploads import MOST_FILE_BYTES, TooLarge, Upload

T = TypeVar("T")
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_MOST_FIELD_BYTES = 1024
_PART_S = 60.0
"""Longest time until more of an upload must have come."""
_PIECE_BYTES = 1 << 16


async def received(
    request: web.Request, store: BatchStore, tenant: str, room_bytes: int
) -> StoredFile:
    """The file in a form, durable; raises `AnswerRefused`. At most `room_bytes` are taken."""
    if not request.content_type.startswith("multipart/"):
        raise invalid("a file comes as a form, 'multipart/form-data'", "file")
    upload: Upload | None = None
    filename = ""
    fields: dict[str, str] = {}
    try:
        form = await request.multipart()
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
                raise invalid(f"the field '{_shown(part.name)}' is not understood", "file")
        if upload is None:
            raise invalid("'file' is required", "file", "missing_required_parameter")
        lifetime = _checked(fields)
        return await asyncio.to_thread(upload.finish, tenant, filename[:255], lifetime)
    except TooLarge as error:
        raise _too_large(MOST_FILE_BYTES) from error
    except TimeoutError as error:
        raise AnswerRefused(408, f"nothing more of the file came within {_PART_S:.0f} s") from error
    except (ValueError, AssertionError) as error:
        raise invalid("this is no valid form", code="form_invalid") from error
    finally:
        if upload is not None:
            await asyncio.to_thread(upload.abort)


def _checked(fields: dict[str, str]) -> int:
    """The lifetime in seconds of a file with these fields."""
    if "purpose" not in fields:
        raise invalid("'purpose' is required", "purpose", "missing_required_parameter")
    if fields["purpose"] != "batch":
        raise invalid("'purpose' must be 'batch': no other files are kept here", "purpose")
    anchor, seconds = (fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
    if anchor is None and seconds is None:
        return FILE_LIFETIME_S
    return lifetime_s(anchor, seconds, "expires_after")


async def _take(part: BodyPartReader, upload: Upload, most_bytes: int) -> None:
    taken = 0
    while data := await _soon(part.read_chunk(_PIECE_BYTES)):
        taken += len(data)
        if taken > most_bytes:
            raise _too_large(most_bytes)
        if upload.add(bytes(data)):
            await asyncio.to_thread(upload.write)


async def _short(part: BodyPartReader) -> str:
    value = bytearray()
    while data := await _soon(part.read_chunk(_MOST_FIELD_BYTES)):
        value += data
        if len(value) > _MOST_FIELD_BYTES:
            raise invalid(f"'{_shown(part.name)}' is too long", part.name)
    return value.decode(errors="replace")


async def _soon(coming: Awaitable[T]) -> T:
    async with asyncio.timeout(_PART_S):
        return await coming


def _too_large(most_bytes: int) -> AnswerRefused:
    return AnswerRefused(
        413, f"the file has more than {most_bytes} bytes", "file", "file_too_large"
    )


def _shown(name: str | None) -> str:
    return (name or "")[:100]
