"""One active provisioner among replicas on several hosts: the lease is a row of a database.

Any Postgres database can be used, such as that of batches.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from foretell.services.process.database import Database, DatabaseError, Rows
from foretell.services.provisioner.lease import Held, ProvisionerLease, boot_s

_KEY = 4702111235  # arbitrary, but used by no other service
_NAME = "provisioner"
_SCHEMA = """CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    version BIGINT NOT NULL
)"""
_FIRST = "INSERT INTO leases VALUES (:name, '', 0, 0) ON CONFLICT DO NOTHING"
_READ = "SELECT holder, epoch, version FROM leases WHERE name = :name"
_WRITE = """UPDATE leases SET holder = :holder, epoch = :epoch, version = version + 1
WHERE name = :name AND version = :version"""


class DatabaseLease(ProvisionerLease):
    """A lease in a row, which is created when it is first read."""

    def __init__(
        self,
        where: Path | str,
        holder: str,
        *,
        clock: Callable[[], float] = boot_s,
    ) -> None:
        """`where`: as in `Database`, which is opened at the first use that succeeds."""
        super().__init__(holder, (DatabaseError,), clock)
        self._where = where
        self._database: Database | None = None

    def close(self) -> None:
        """Close its connections."""
        if self._database is not None:
            self._database.close()

    def _read(self) -> Held:
        with self._opened().reading() as rows:
            holder, epoch, version = rows.run(_READ, name=_NAME).one()
        return Held(holder, epoch, version)

    def _write(self, held: Held, holder: str, epoch: int) -> bool:
        values = {"name": _NAME, "holder": holder, "epoch": epoch, "version": held.version}
        with self._opened().changing() as rows:
            return rows.run(_WRITE, **values).rowcount == 1

    def _opened(self) -> Database:
        if self._database is None:
            self._database = Database(self._where, _prepare, key=_KEY)
        return self._database


def _prepare(rows: Rows, _types: Mapping[str, str]) -> None:
    rows.run(_SCHEMA)
    rows.run(_FIRST, name=_NAME)
