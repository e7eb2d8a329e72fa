"""Durable files and batches: records in a database, bytes in a folder or in object storage."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from foretell.batch.states import ENDED, Batch
from foretell.services.batch.database import open_database
from foretell.services.batch.disk import Disk, Storage
from foretell.services.batch.objects import Objects
from foretell.services.process.database import Notice, Rows, unnoticed
from foretell.services.process.folders import private_folder

Clock = Callable[[], float]
"""Returns the time in Unix seconds."""
_UNKNOWN_AFTER_S = 3600.0
"""A file this old without a record was left by a process that ended before adding one."""
BATCHES_KEPT_S = 30 * 86_400
"""Ended batches are kept this long after their completion window; files are kept as long."""
_FORGOTTEN_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The record of one file."""

    id: str
    tenant: str
    filename: str
    purpose: str
    length_bytes: int
    created_unix_s: int
    expires_unix_s: int

    def shown(self) -> dict[str, Any]:
        """The file as OpenAI's API shows it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.length_bytes,
            "created_at": self.created_unix_s,
            "expires_at": self.expires_unix_s,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class Lost(Exception):
    """Another worker has taken over what this one was doing."""


class IdempotencyConflict(Exception):
    """The key was used before, for another request."""


class InUse(Exception):
    """A batch that has not ended reads this file."""


def storage_of(folder: Path, files_url: str, notice: Notice = unnoticed) -> Storage:
    """The storage of files: object storage at `files_url` or, if that is empty, a folder."""
    return Objects(files_url, notice) if files_url else Disk(folder / "files", notice)


class BatchStore:
    """Everything durable about files and batches.

    Expired files are not returned. Methods raise `DatabaseError` or OSError when the storage
    fails; then nothing has changed, as far as the database can tell.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock = time.time,
        notice: Notice = unnoticed,
        *,
        database_url: str = "",
        files_url: str = "",
    ) -> None:
        """Everything is in `folder`, except what has a URL: a Postgres database, a bucket of
        object storage for files."""
        private_folder(folder)
        self.storage = storage_of(folder, files_url, notice)
        self.database = open_database(database_url or folder / "batches.sqlite", notice)
        self.clock = clock
        """Returns the time in Unix seconds."""

    def now(self) -> int:
        """The time in whole Unix seconds."""
        return int(self.clock())

    def close(self) -> None:
        self.database.close()

    # --- files ----------------------------------------------------------------------------------

    def add_file(self, file: StoredFile) -> None:
        """Add the record of a file whose bytes are stored."""
        with self.database.changing() as rows:
            add_file(rows, file)

    def file(self, tenant: str, file_id: str) -> StoredFile | None:
        """A tenant's file; None if it has none with this id."""
        with self.database.reading() as rows:
            row = rows.run(
                f"SELECT {_FILE} FROM files"  # noqa: S608 - names of columns
                " WHERE id = :id AND tenant = :tenant AND expires_unix_s > :now",
                id=file_id,
                tenant=tenant,
                now=self.now(),
            ).first()
        return StoredFile(*row) if row else None

    def files(
        self, tenant: str, after: str, limit: int, *, purpose: str = "", ascending: bool = False
    ) -> list[StoredFile] | None:
        """At most `limit` of a tenant's files after the file `after`, newest first by default.

        None if `after` is not known.
        """
        direction, order = (">", "ASC") if ascending else ("<", "DESC")
        with self.database.reading() as rows:
            start = _start(rows, "files", tenant, after, first=0 if ascending else 1 << 62)
            if start is None:
                return None
            found = rows.run(
                f"SELECT {_FILE} FROM files"  # noqa: S608
                f" WHERE tenant = :tenant AND seq {direction} :start"
                " AND expires_unix_s > :now AND (:purpose = '' OR purpose = :purpose)"
                f" ORDER BY seq {order} LIMIT :limit",
                tenant=tenant,
                start=start,
                now=self.now(),
                purpose=purpose,
                limit=limit,
            ).all()
        return [StoredFile(*row) for row in found]

    def bytes_of(self, tenant: str) -> int:
        """The total length of a tenant's files."""
        query = "SELECT coalesce(sum(length_bytes), 0) FROM files WHERE tenant = :tenant"
        with self.database.reading() as rows:
            return int(rows.run(query, tenant=tenant).scalar_one())

    def delete_file(self, tenant: str, file_id: str) -> bool:
        """Delete a file's record and bytes; False if there is none. Raises `InUse`."""
        with self.database.changing() as rows:
            open_batches = rows.run("SELECT document FROM batches WHERE ended = 0")
            if any(_batch(row).input_file_id == file_id for row in open_batches):
                raise InUse
            query = "DELETE FROM files WHERE id = :id AND tenant = :tenant"
            gone = rows.run(query, id=file_id, tenant=tenant).rowcount
        if gone:
            self.storage.remove(file_id)
        return bool(gone)

    def clean(self) -> None:
        """Remove expired files that no open batch reads, batches that ended long ago, and what
        ended processes have left."""
        self._forget_batches()
        with self.database.reading() as rows:
            query = "SELECT tenant, id FROM files WHERE expires_unix_s <= :now"
            expired = rows.run(query, now=self.now()).all()
            known = set(rows.run("SELECT id FROM files").scalars())
        for tenant, file_id in expired:
            try:
                self.delete_file(tenant, file_id)
            except InUse:
                continue
        self.storage.clean(known.__contains__, self.clock() - _UNKNOWN_AFTER_S)

    def _forget_batches(self) -> None:
        """Delete batches that ended long ago, oldest first, a bounded number at a time."""
        with self.database.changing() as rows:
            query = "SELECT document FROM batches WHERE ended = 1 ORDER BY seq LIMIT :most"
            oldest = map(_batch, rows.run(query, most=_FORGOTTEN_AT_ONCE).all())
            before = self.now() - BATCHES_KEPT_S
            old = [{"id": each.id} for each in oldest if each.expires_unix_s < before]
            rows.run_each("DELETE FROM batches WHERE id = :id", old)

    # --- batches --------------------------------------------------------------------------------

    def add_batch(self, batch: Batch, *, idempotency_key: str | None = None) -> Batch:
        """Store a new batch, or return the earlier one if the same request came with this key.

        Raises `IdempotencyConflict` if another request came with the key.
        """
        asked = json.dumps(
            [
                *(batch.input_file_id, batch.endpoint, batch.completion_window),
                *(batch.metadata, batch.output_expires_s),
            ],
            sort_keys=True,
        )
        with self.database.changing() as rows:
            earlier = rows.run(
                "SELECT asked, document FROM batches"
                " WHERE tenant = :tenant AND idempotency_key = :key",
                tenant=batch.tenant,
                key=idempotency_key,
            ).first()
            if earlier is not None:
                if earlier.asked != asked:
                    raise IdempotencyConflict
                return _batch(earlier)
            rows.run(
                "INSERT INTO batches (id, tenant, ended, idempotency_key, asked, document)"
                " VALUES (:id, :tenant, 0, :key, :asked, :document)",
                id=batch.id,
                tenant=batch.tenant,
                key=idempotency_key,
                asked=asked,
                document=json.dumps(batch.document()),
            )
        return batch

    def batch(self, tenant: str, batch_id: str) -> Batch | None:
        """A tenant's batch; None if it has none with this id."""
        with self.database.reading() as rows:
            query = "SELECT document FROM batches WHERE id = :id AND tenant = :tenant"
            row = rows.run(query, id=batch_id, tenant=tenant).first()
        return _batch(row) if row else None

    def batches(self, tenant: str, after: str, limit: int) -> list[Batch] | None:
        """At most `limit` of a tenant's batches after the batch `after`, newest first.

        None if `after` is not known.
        """
        with self.database.reading() as rows:
            start = _start(rows, "batches", tenant, after, first=1 << 62)
            if start is None:
                return None
            found = rows.run(
                "SELECT document FROM batches WHERE tenant = :tenant AND seq < :start"
                " ORDER BY seq DESC LIMIT :limit",
                tenant=tenant,
                start=start,
                limit=limit,
            ).all()
        return [_batch(row) for row in found]

    def open_batches(self, tenant: str | None = None) -> Sequence[Batch]:
        """Batches that have not ended, the oldest first; None: those of all tenants."""
        query = "SELECT document FROM batches WHERE ended = 0"
        query += "" if tenant is None else " AND tenant = :tenant"
        with self.database.reading() as rows:
            found = rows.run(f"{query} ORDER BY seq", tenant=tenant).all()
        return [_batch(row) for row in found]

    def change(self, batch_id: str, change: Callable[[Batch], Batch]) -> Batch:
        """Apply `change` to an existing batch. If it raises, the batch stays as it was."""
        with self.database.changing() as rows:
            return changed(rows, batch_id, change)


_FILE = ", ".join(StoredFile.__slots__)


def new_id(kind: str, unique: bytes) -> str:
    """An id of the prefix `kind` and a hash of `unique`, such as "batch_4f…"."""
    return f"{kind}{sha256(unique).hexdigest()[:24]}"


def output_file_id(batch_id: str, *, ok: bool) -> str:
    """The id of a batch's output or error file, the same for every worker."""
    return new_id("file-", f"{batch_id}:{'output' if ok else 'error'}".encode())


def add_file(rows: Rows, file: StoredFile) -> None:
    """Add a file's record within a transaction."""
    values = ", ".join(f":{name}" for name in StoredFile.__slots__)
    rows.run(f"INSERT INTO files ({_FILE}) VALUES ({values})", **asdict(file))  # noqa: S608


def batch_in(rows: Rows, batch_id: str) -> Batch:
    """Read an existing batch within a transaction."""
    return _batch(rows.run("SELECT document FROM batches WHERE id = :id", id=batch_id).one())


def changed(rows: Rows, batch_id: str, change: Callable[[Batch], Batch]) -> Batch:
    """Change an existing batch within a transaction."""
    batch = change(batch_in(rows, batch_id))
    rows.run(
        "UPDATE batches SET document = :document, ended = :ended WHERE id = :id",
        document=json.dumps(batch.document()),
        ended=int(batch.status in ENDED),
        id=batch_id,
    )
    return batch


def _batch(row: Row[*tuple[Any, ...]]) -> Batch:
    return Batch.from_document(json.loads(row.document))


def _start(rows: Rows, table: str, tenant: str, after: str, *, first: int) -> int | None:
    """The sequence number after which a page begins; None if `after` is not in the list."""
    if not after:
        return first
    query = f"SELECT seq FROM {table} WHERE id = :id AND tenant = :tenant"  # noqa: S608
    found = rows.run(query, id=after, tenant=tenant).scalar_one_or_none()
    return None if found is None else int(found)
