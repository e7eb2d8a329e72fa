"""The HTTP API: OpenAI's Files and Batches. Clients reach it through a scheduler."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import unquote

from aiohttp import web

from foretell.batch.lines import first_lines
from foretell.batch.promises import Promises
from foretell.batch.states import Batch, IllegalTransition
from foretell.openai.errors import ApiError
from foretell.services.batch.answers import (
    NewBatch,
    checked,
    error_response,
    invalid,
    listed,
    page_of,
)
from foretell.services.batch.store import BatchStore, IdempotencyConflict, InUse, StoredFile, new_id
from foretell.services.batch.uploads import received
from foretell.services.process.database import DatabaseError
from foretell.services.process.traffic import TENANT_HEADER, Traffic

logger = logging.getLogger(__name__)
T = TypeVar("T")

MOST_OPEN_BATCHES = 100
"""The most batches of one caller that have not ended."""
_MOST_BODY_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BatchApp:
    """Files and batches of all callers."""

    def __init__(
        self,
        store: BatchStore,
        traffic: Traffic,
        *,
        tenant_bytes: int,
        changed: Callable[[], None],
        promises: Promises,
        instances: Callable[[], int],
    ) -> None:
        """`changed` is called after a batch was created or cancelled; `instances` returns how many
        instances work on batches."""
        self._instances = instances
        self._promises = promises
        self._store = store
        self._traffic = traffic
        self._tenant_bytes = tenant_bytes
        self._changed = changed
        self._threads = ThreadPoolExecutor(4, "batch-http")

    def close(self) -> None:
        """Cancel pending storage calls, and wait for running ones."""
        self._threads.shutdown(cancel_futures=True)

    def application(self) -> web.Application:
        """The application for aiohttp's server."""

        @web.middleware
        async def answered(request: web.Request, handler: _Handler) -> web.StreamResponse:
            return await self._answered(request, handler)

        app = web.Application(middlewares=[answered])
        app.add_routes(
            [
                web.get("/health", _health),
                web.get("/status", self._status),
                web.post("/v1/files", self._upload),
                web.get("/v1/files", self._files),
                web.get("/v1/files/{id}", self._file),
                web.delete("/v1/files/{id}", self._delete),
                web.get("/v1/files/{id}/content", self._content),
                web.post("/v1/batches", self._create),
                web.get("/v1/batches", self._batches),
                web.get("/v1/batches/{id}", self._batch),
                web.post("/v1/batches/{id}/cancel", self._cancel),
            ]
        )
        return app

    async def _answered(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Call the handler, and answer its errors in OpenAI's format."""
        try:
            return await handler(request)
        except ApiError as refused:
            return error_response(refused)
        except web.HTTPException as error:
            text = f"{error.reason}: {request.method} {request.path}"
            return error_response(ApiError(error.status, text))
        except (DatabaseError, OSError) as error:
            if isinstance(error, ConnectionError):
                raise  # the client's connection, not the storage
            logger.warning("the storage of batches failed: %s", error)
            text = "files and batches cannot be stored or read now; retry shortly"
            headers = {"retry-after": "1"}
            return error_response(ApiError(503, text, code="storage_failed", headers=headers))

    def _tenant(self, request: web.Request) -> str:
        """The caller, whom a scheduler has authenticated."""
        if not self._traffic.secret:  # only processes of this host can reach it
            return unquote(request.headers.get(TENANT_HEADER, ""))
        tenant = self._traffic.tenant(request.headers)
        if tenant is None:
            raise ApiError(401, "the shared secret is missing or wrong", code="invalid_secret")
        return tenant

    async def _stored(self, do: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, do, *arguments)

    async def _status(self, request: web.Request) -> web.StreamResponse:
        """What a provisioner needs to know about the batches of all callers."""
        self._tenant(request)  # raises if the secret is wrong
        due = [{"due_unix_s": at, "left_s": left_s} for at, left_s in self._promises.due]
        return web.json_response({"instances": self._instances(), "batches": due})

    # --- files ----------------------------------------------------------------------------------

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        tenant = self._tenant(request)
        taken_bytes = await self._stored(self._store.bytes_of, tenant)
        file = await received(request, self._store, tenant, self._tenant_bytes - taken_bytes)
        return web.json_response(file.shown())

    async def _files(self, request: web.Request) -> web.StreamResponse:
        tenant = self._tenant(request)
        after, limit = page_of(request, most=10_000, default=10_000)
        order = request.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid("'order' must be 'asc' or 'desc'", "order")
        purpose = request.query.get("purpose", "")

        def look() -> list[StoredFile] | None:
            ascending = order == "asc"
            return self._store.files(tenant, after, limit + 1, purpose=purpose, ascending=ascending)

        found = await self._stored(look)
        if found is None:
            raise invalid(f"no file has the id '{after[:100]}'", "after")
        return listed([file.shown() for file in found], limit)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return web.json_response((await self._found(request)).shown())

    async def _found(self, request: web.Request) -> StoredFile:
        tenant, file_id = self._tenant(request), request.match_info["id"]
        file = await self._stored(self._store.file, tenant, file_id)
        if file is None:
            raise ApiError(404, f"No such File object: {file_id[:100]}", "id")
        return file

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        file = await self._found(request)
        try:
            await self._stored(self._store.delete_file, file.tenant, file.id)
        except InUse as error:
            text = "a batch that has not ended reads this file; cancel it first"
            raise ApiError(409, text, "id", "file_in_use") from error
        return web.json_response({"id": file.id, "object": "file", "deleted": True})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        file = await self._found(request)
        response = web.StreamResponse()
        response.content_type = "application/octet-stream"
        response.content_length = file.length_bytes
        begin = 0
        # The first piece is read before the status is sent, so that a failure can still answer 503.
        while begin < file.length_bytes and request.method != "HEAD":
            data = await self._stored(self._store.storage.read, file.id, begin, _PIECE_BYTES)
            if not data:
                raise OSError(f"{file.id} ends after {begin} of {file.length_bytes} bytes")
            if not response.prepared:
                await response.prepare(request)
            await response.write(data)
            begin += len(data)
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
        return response

    # --- batches --------------------------------------------------------------------------------

    async def _create(self, request: web.Request) -> web.StreamResponse:
        tenant = self._tenant(request)
        raw = await request.content.read(_MOST_BODY_BYTES + 1)
        while raw and not request.content.at_eof() and len(raw) <= _MOST_BODY_BYTES:
            raw += await request.content.read(_MOST_BODY_BYTES + 1)
        if len(raw) > _MOST_BODY_BYTES:
            text = f"the request body is longer than {_MOST_BODY_BYTES} bytes"
            raise ApiError(413, text, code="request_too_large")
        asked, now = checked(NewBatch, raw), self._store.now()
        lifetime = asked.output_expires_after
        batch = Batch(
            id=new_id("batch_", os.urandom(16)),
            tenant=tenant,
            input_file_id=asked.input_file_id,
            endpoint=asked.endpoint,
            completion_window=asked.completion_window,
            created_unix_s=now,
            expires_unix_s=now + asked.window_s,
            metadata=asked.metadata,
            output_expires_s=lifetime.seconds if lifetime else 0,
        )
        file = await self._stored(self._store.file, tenant, batch.input_file_id)
        if file is None:
            text = f"No such File object: {batch.input_file_id[:100]}"
            raise invalid(text, "input_file_id")
        if file.purpose != "batch":
            raise invalid("the input file must have the purpose 'batch'", "input_file_id")
        key = request.headers.get("idempotency-key")
        if len(await self._stored(self._store.open_batches, tenant)) >= MOST_OPEN_BATCHES:
            text = f"{MOST_OPEN_BATCHES} batches have not ended yet"
            raise ApiError(429, text, code="too_many_batches", headers={"retry-after": "60"})

        def keep() -> Batch:
            return self._store.add_batch(batch, idempotency_key=key[:255] if key else None)

        try:
            kept = await self._stored(keep)
        except IdempotencyConflict as error:
            text = "this Idempotency-Key came with another request before"
            headers = {"x-should-retry": "false"}
            raise ApiError(409, text, code="idempotency_conflict", headers=headers) from error
        await self._quote(kept, file)
        self._changed()
        return web.json_response(self._shown(kept))

    async def _quote(self, batch: Batch, file: StoredFile) -> None:
        """Predict when a new batch will end, from the beginning of its file."""
        with suppress(OSError):  # the batch is created without a prediction, too
            head = await self._stored(self._store.storage.read, file.id, 0, _HEAD_BYTES)
            found = first_lines(head, file.length_bytes)
            self._promises.quote(batch.id, *found, self._store.clock())

    async def _batches(self, request: web.Request) -> web.StreamResponse:
        tenant = self._tenant(request)
        after, limit = page_of(request, most=100, default=20)
        found = await self._stored(self._store.batches, tenant, after, limit + 1)
        if found is None:
            raise invalid(f"no batch has the id '{after[:100]}'", "after")
        return listed([self._shown(batch) for batch in found], limit)

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._shown(await self._known(request)))

    def _shown(self, batch: Batch) -> dict[str, Any]:
        """The batch as OpenAI's API shows it, with the field `foretell` added."""
        return {**batch.shown(), "foretell": self._promises.shown(batch)}

    async def _known(self, request: web.Request) -> Batch:
        tenant, batch_id = self._tenant(request), request.match_info["id"]
        batch = await self._stored(self._store.batch, tenant, batch_id)
        if batch is None:
            raise ApiError(404, f"No batch found with id '{batch_id[:100]}'.", "batch_id")
        return batch

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        batch = await self._known(request)
        now = self._store.now()
        try:
            cancelling = await self._stored(
                self._store.change, batch.id, lambda known: known.cancel(now)
            )
        except IllegalTransition as error:
            known = await self._known(request)
            text = f"Cannot cancel a batch with status '{known.status}'."
            raise ApiError(409, text, code="batch_not_cancellable") from error
        self._changed()
        return web.json_response(self._shown(cancelling))


async def _health(_: web.Request) -> web.StreamResponse:
    return web.Response()
