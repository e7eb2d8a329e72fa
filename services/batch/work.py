"""Which worker does what: tokens, claims of lines, and the records of lines that have ended.

A worker's token is never reused, so it is a fencing token: if a worker was believed dead and
another has taken over its work, its writes are refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from foretell.batch.records import NO_USAGE, Record
from foretell.batch.states import Batch, Status
from foretell.services.batch.store import BatchStore, Lost, batch_in, changed
from foretell.services.process.database import Rows

LEASE_S = 15.0
"""A worker that has not renewed its lease for this long is believed dead."""
_PAGE = 500


@dataclass(frozen=True, slots=True)
class FilePlace:
    """One request of a batch: where it stands in the input file."""

    line: int
    """Counted from 1."""
    custom_id: str
    begin_bytes: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """One request of a batch, with its record if it has ended."""

    line: int
    custom_id: str
    ok: bool | None
    record: bytes | None


class Work:
    """One worker's claims on batches and their lines.

    Methods raise `Lost` when another worker has taken over, and `DatabaseError` when the
    storage fails; then nothing has changed, as far as the database can tell.
    """

    def __init__(self, store: BatchStore, *, alone: bool = False) -> None:
        """Register a new worker; `alone`: no other worker can be alive."""
        self.store = store
        with store.database.changing() as rows:
            if alone:
                rows.run("UPDATE workers SET until_unix_s = 0")
            old = store.now() - 86_400
            rows.run("DELETE FROM workers WHERE until_unix_s < :old", old=old)
            query = "INSERT INTO workers (until_unix_s) VALUES (:until) RETURNING token"
            self.token = int(rows.run(query, until=store.now() + LEASE_S).scalar_one())

    def renew(self) -> None:
        """Renew this worker's lease; must be called several times in `LEASE_S`."""
        with self.store.database.changing() as rows:
            rows.run(
                "UPDATE workers SET until_unix_s = :until"
                " WHERE token = :token AND until_unix_s < :until",
                until=self.store.now() + LEASE_S,
                token=self.token,
            )

    def leave(self) -> None:
        """End this worker's lease, so that others can take over at once."""
        with self.store.database.changing() as rows:
            rows.run("DELETE FROM workers WHERE token = :token", token=self.token)

    # --- whole batches --------------------------------------------------------------------------

    def take(self, batch_id: str) -> bool:
        """Claim a batch to validate, order or seal it; False if another living worker holds it."""
        with self.store.database.changing() as rows:
            taken = rows.run(
                "UPDATE batches SET holder = :token WHERE id = :id AND (holder = :token"
                " OR holder NOT IN (SELECT token FROM workers WHERE until_unix_s > :now))",
                token=self.token,
                id=batch_id,
                now=self.store.now(),
            )
            return bool(taken.rowcount)

    def enter(self, batch_id: str, places: Sequence[FilePlace], *, first: bool) -> None:
        """Store lines that were found valid; `first`: they are the first of the batch."""
        with self.store.database.changing() as rows:
            self.held(rows, batch_id, Status.VALIDATING)
            if first:  # an interrupted validation may have left some
                drop_lines(rows, batch_id)
            rows.run_each(
                "INSERT INTO lines (batch, line, custom_id, begin_bytes, length_bytes)"
                " VALUES (:batch, :line, :custom_id, :begin_bytes, :length_bytes)",
                [{"batch": batch_id, **asdict(place)} for place in places],
            )

    def held(self, rows: Rows, batch_id: str, *statuses: Status) -> None:
        """Raise `Lost` unless this worker holds the batch and it is in one of these states."""

        status = batch_in(rows, batch_id).status
        if status not in statuses:
            raise Lost(f"{batch_id} is {status}")
        query = "SELECT holder FROM batches WHERE id = :id"
        if rows.run(query, id=batch_id).scalar_one() != self.token:
            raise Lost(f"another worker has taken {batch_id}")

    # --- lines ----------------------------------------------------------------------------------

    def claim(self, batch_id: str, most: int) -> list[FilePlace]:
        """Claim at most `most` lines that have not ended and that no living worker holds. Lines are
        claimed by rank, those of equal rank in the order of the file."""
        now = self.store.now()
        with self.store.database.changing() as rows:
            found = rows.run(
                "UPDATE lines SET holder = :token WHERE batch = :batch AND line IN ("
                " SELECT line FROM lines WHERE batch = :batch AND ok IS NULL AND holder != :token"
                " AND holder NOT IN (SELECT token FROM workers WHERE until_unix_s > :now)"
                " ORDER BY rank, line LIMIT :most)"
                " RETURNING rank, line, custom_id, begin_bytes, length_bytes",
                token=self.token,
                batch=batch_id,
                now=now,
                most=most,
            ).all()
        ranked = sorted(found, key=lambda row: (row.rank, row.line))
        return [FilePlace(*row[1:]) for row in ranked]

    def left(self, batch_id: str) -> list[int]:
        """The lines that have not ended, in the order of the file."""
        with self.store.database.reading() as rows:
            found = rows.run(
                "SELECT line FROM lines WHERE batch = :batch AND ok IS NULL ORDER BY line",
                batch=batch_id,
            )
            return [row.line for row in found.all()]

    def rank(self, batch_id: str, lines: Iterable[int]) -> None:
        """Rank these lines in this order, after lines that have no rank."""
        with self.store.database.changing() as rows:
            rows.run_each(
                "UPDATE lines SET rank = :rank WHERE batch = :batch AND line = :line",
                [
                    {"batch": batch_id, "line": line, "rank": rank}
                    for rank, line in enumerate(lines, 1)
                ],
            )

    def give_back(self, batch_id: str, lines: Iterable[int]) -> None:
        """Release these lines, so that any worker can claim them."""
        with self.store.database.changing() as rows:
            rows.run_each(
                "UPDATE lines SET holder = 0"
                " WHERE batch = :batch AND line = :line AND holder = :token",
                [{"batch": batch_id, "line": line, "token": self.token} for line in lines],
            )

    def complete(self, batch_id: str, ended: Sequence[tuple[int, Record]]) -> list[Record]:
        """Store the records of lines that this worker has claimed; return those that were stored.

        They are durable when this returns. Lines that another worker has taken over, or that have
        a record already, are skipped. After its last line the batch is finalizing. Raises `Lost`
        if the batch takes no more answers.
        """
        now = self.store.now()
        with self.store.database.changing() as rows:
            kept = [record for line, record in ended if self._keep(rows, batch_id, line, record)]

            def count(batch: Batch) -> Batch:
                if batch.status is not Status.IN_PROGRESS:
                    raise Lost(f"{batch_id} is {batch.status}")
                completed = sum(record.ok for record in kept)
                usage = sum((record.usage for record in kept), NO_USAGE)
                batch = batch.answered(completed, len(kept) - completed, usage)
                return batch if batch.counts.left else batch.finished(now)

            changed(rows, batch_id, count)
        return kept

    def _keep(self, rows: Rows, batch_id: str, line: int, record: Record) -> bool:
        kept = rows.run(
            "UPDATE lines SET ok = :ok, record = :record"
            " WHERE batch = :batch AND line = :line AND holder = :token AND ok IS NULL",
            ok=int(record.ok),
            record=record.line,
            batch=batch_id,
            line=line,
            token=self.token,
        )
        return bool(kept.rowcount)


def all_lines(store: BatchStore, batch_id: str) -> Iterator[WorkEnded]:
    """All lines of a batch in the order of its file, a page at a time."""
    last = 0
    while True:
        with store.database.reading() as rows:
            page = rows.run(
                "SELECT line, custom_id, ok, record FROM lines"
                " WHERE batch = :batch AND line > :last ORDER BY line LIMIT :page",
                batch=batch_id,
                last=last,
                page=_PAGE,
            ).all()
        if not page:
            return
        for row in page:
            ok = None if row.ok is None else bool(row.ok)
            yield WorkEnded(row.line, row.custom_id, ok, row.record)
        last = page[-1].line


def drop_lines(rows: Rows, batch_id: str) -> None:
    """Delete the lines of a batch within a transaction."""
    rows.run("DELETE FROM lines WHERE batch = :batch", batch=batch_id)
