"""Taking in files: bytes as they come, and a record of them once they are durable."""

import os
from contextlib import ExitStack
from functools import partial

from foretell.services.batch.advance import FILE_LIFETIME_S
from foretell.services.batch.store import BatchStore, StoredFile, new_id

MOST_FILE_BYTES = 200 << 20
_PIECE_BYTES = 1 << 20


class TooLarge(Exception):
    """A file has more bytes than are taken."""


class Upload:
    """One file on its way in. It ends with `finish` or `abort`; both may take as long as a disk."""

    def __init__(self, store: BatchStore, most_bytes: int = MOST_FILE_BYTES) -> None:
        self._most_bytes = most_bytes
        self.file_id = new_id("file-", os.urandom(16))
        self._store = store
        self._ending = ExitStack()
        self._draft = self._ending.enter_context(store.storage.writing(self.file_id, "upload"))
        self._piece: list[bytes] = []
        self._piece_bytes = 0

    def add(self, data: bytes) -> bool:
        """Take in more bytes; whether there are so many that `write` should be called."""
        self._piece.append(data)
        self._piece_bytes += len(data)
        return self._piece_bytes >= _PIECE_BYTES

    def write(self) -> None:
        """Write what has come so far; raises `TooLarge`."""
        data = b"".join(self._piece)
        self._piece, self._piece_bytes = [], 0
        if self._draft.length_bytes + len(data) > self._most_bytes:
            raise TooLarge
        self._draft.write(data)

    def finish(self, tenant: str, filename: str, lifetime_s: int = FILE_LIFETIME_S) -> StoredFile:
        """All bytes have come: they are durable and known when this returns."""
        self.write()
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
        """Leave nothing of it, unless it was finished."""
        self._ending.close()
