"""The tables of batches."""

from collections.abc import Mapping
from pathlib import Path

from foretell.services.process.database import Database, Notice, Rows, unnoticed

_KEY = 4702111234  # arbitrary, but used by no other service
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS files (
    seq {serial},
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    length_bytes BIGINT NOT NULL,
    created_unix_s BIGINT NOT NULL,
    expires_unix_s BIGINT NOT NULL
)""",
    "CREATE INDEX IF NOT EXISTS files_of_tenant ON files (tenant, seq)",
    """CREATE TABLE IF NOT EXISTS batches (
    seq {serial},
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    ended INTEGER NOT NULL,
    holder BIGINT NOT NULL DEFAULT 0,
    idempotency_key TEXT,
    asked TEXT NOT NULL,
    document TEXT NOT NULL,
    UNIQUE (tenant, idempotency_key)
)""",
    "CREATE INDEX IF NOT EXISTS batches_of_tenant ON batches (tenant, seq)",
    "CREATE INDEX IF NOT EXISTS open_batches ON batches (seq) WHERE ended = 0",
    """CREATE TABLE IF NOT EXISTS lines (
    batch TEXT NOT NULL,
    line BIGINT NOT NULL,
    custom_id TEXT NOT NULL,
    begin_bytes BIGINT NOT NULL,
    length_bytes BIGINT NOT NULL,
    holder BIGINT NOT NULL DEFAULT 0,
    rank BIGINT NOT NULL DEFAULT 0,
    ok INTEGER,
    record {bytes},
    PRIMARY KEY (batch, line),
    UNIQUE (batch, custom_id)
)""",
    """CREATE TABLE IF NOT EXISTS workers (
    token {serial},
    until_unix_s DOUBLE PRECISION NOT NULL
)""",
)
_RANK = "ALTER TABLE lines ADD COLUMN rank BIGINT NOT NULL DEFAULT 0"
"""Adds ranks to tables that were created before lines had them."""
_INDEX = "CREATE INDEX IF NOT EXISTS ranked_lines ON lines (batch, rank, line) WHERE ok IS NULL"


def open_database(where: Path | str, notice: Notice = unnoticed) -> Database:
    """Open the database of batches and create missing tables. Raises `DatabaseError`."""
    return Database(where, _prepare, key=_KEY, notice=notice)


def _prepare(rows: Rows, types: Mapping[str, str]) -> None:
    for statement in _SCHEMA:
        rows.run(statement.format_map(types))
    if "rank" not in rows.run("SELECT * FROM lines LIMIT 0").keys():  # noqa: SIM118
        rows.run(_RANK)
    rows.run(_INDEX)
