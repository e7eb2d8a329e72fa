"""The steps of a whole batch: validate its input, expire it, seal its output.

A step can be repeated after a crash at any point: nothing is visible before the one transaction
that ends it.
"""

from collections.abc import Collection, Iterator

from foretell.batch.lines import MOST_LINE_BYTES, MOST_REQUESTS, Checker, LineError
from foretell.batch.records import Record, cancelled, expired
from foretell.batch.states import ENDED, SEALING, Batch, Status
from foretell.services.batch.disk import Draft, Storage
from foretell.services.batch.store import StoredFile, add_file, changed, new_id, output_file_id
from foretell.services.batch.work import FilePlace, Work, WorkEnded, all_lines, drop_lines

_CHUNK_LINES = 2000
_CHUNK_BYTES = 1 << 20
FILE_LIFETIME_S = 30 * 86_400
"""The lifetime of files for which the client states none."""


def validate(
    work: Work,
    batch: Batch,
    models: Collection[str] | None,
    most_requests: int = MOST_REQUESTS,
) -> Batch:
    """Validate a batch's input file. The batch then begins, or fails with the errors found.

    Requests may name `models`; None: any. Raises `Lost` if this worker no longer holds the batch.
    """
    store = work.store
    checker = Checker(batch.endpoint, models, most_requests)
    chunk: list[FilePlace] = []
    first = True
    found = _lines_of(store.storage, batch.input_file_id)
    for number, (begin, raw) in enumerate(found, 1):
        line = checker.check(number, raw) if raw is not None else None
        if raw is None:
            checker.errors.append(_too_long(number))
        if line is not None and not checker.errors:
            chunk.append(FilePlace(number, line.custom_id, begin, len(raw or b"")))
        if len(chunk) == _CHUNK_LINES:
            work.enter(batch.id, chunk, first=first)
            chunk, first = [], False
        if checker.full:
            break
    checker.end()
    if not checker.errors:
        work.enter(batch.id, chunk, first=first)
    with store.database.changing() as rows:
        work.held(rows, batch.id, Status.VALIDATING)
        if checker.errors:
            drop_lines(rows, batch.id)
            errors = tuple(checker.errors)
            return changed(rows, batch.id, lambda b: b.refused(errors, store.now()))
        begun = checker.requests, checker.model
        return changed(rows, batch.id, lambda b: b.validated(*begun, store.now()))


def time_out(work: Work, batch: Batch) -> Batch:
    """Expire a batch if it is still being validated or in progress."""
    store = work.store

    def change(known: Batch) -> Batch:
        running = known.status in (Status.VALIDATING, Status.IN_PROGRESS)
        return known.timed_out(store.now()) if running else known

    with store.database.changing() as rows:
        after = changed(rows, batch.id, change)
        if after.status in ENDED:
            drop_lines(rows, batch.id)
        return after


def seal(work: Work, batch: Batch) -> Batch:
    """Write a batch's output and error files, and end it.

    Raises `Lost` if this worker no longer holds the batch.
    """
    store = work.store
    ids = {ok: output_file_id(batch.id, ok=ok) for ok in (True, False)}
    name = str(work.token)
    with (
        store.storage.writing(ids[True], name) as output,
        store.storage.writing(ids[False], name) as error,
    ):
        drafts = {True: output, False: error}
        _write(work, batch, drafts)
        for draft in drafts.values():
            if draft.length_bytes:
                draft.publish()
    now = store.now()
    written = {ok: ids[ok] for ok, draft in drafts.items() if draft.length_bytes}
    with store.database.changing() as rows:
        work.held(rows, batch.id, *SEALING)
        for ok, file_id in written.items():
            lifetime_s = batch.output_expires_s or FILE_LIFETIME_S
            kind = "output" if ok else "error"
            stored = StoredFile(
                id=file_id,
                tenant=batch.tenant,
                filename=f"{batch.id}_{kind}.jsonl",
                purpose="batch_output",
                length_bytes=drafts[ok].length_bytes,
                created_unix_s=now,
                expires_unix_s=now + lifetime_s,
            )
            add_file(rows, stored)
        drop_lines(rows, batch.id)
        files = written.get(True), written.get(False)
        return changed(rows, batch.id, lambda known: known.sealed(*files, now))


def _write(work: Work, batch: Batch, drafts: dict[bool, Draft]) -> None:
    waiting: dict[bool, list[bytes]] = {True: [], False: []}
    sizes = {True: 0, False: 0}

    def flush(ok: bool) -> None:
        drafts[ok].write(b"".join(waiting[ok]))
        waiting[ok].clear()
        sizes[ok] = 0

    # A batch cancelled before it was validated has no requests, even if lines were entered.
    for each in all_lines(work.store, batch.id) if batch.counts.total else ():
        ok, line = _final(batch, each)
        waiting[ok].append(line)
        sizes[ok] += len(line)
        if sizes[ok] >= _CHUNK_BYTES:
            flush(ok)
    for ok in drafts:
        flush(ok)


def _final(batch: Batch, ended: WorkEnded) -> tuple[bool, bytes]:
    """Whether a request's line goes to the output file (else the error file), and the line."""
    if ended.ok is not None and ended.record is not None:
        return ended.ok, ended.record
    why = cancelled if batch.status is Status.CANCELLING else expired
    record: Record = why(record_id(batch.id, ended.line), ended.custom_id)
    return False, record.line


def record_id(batch_id: str, line: int) -> str:
    """The id of a line's record: the same for every execution of the line."""
    return new_id("batch_req_", f"{batch_id}:{line}".encode())


def _lines_of(storage: Storage, file_id: str) -> Iterator[tuple[int, bytes | None]]:
    """The byte offset of each line of a file, and the line; None if the line is too long."""
    with storage.opened(file_id) as file:
        begin = 0
        while raw := file.readline(MOST_LINE_BYTES + 1):
            if len(raw) <= MOST_LINE_BYTES:
                yield begin, raw
            else:
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(MOST_LINE_BYTES)
                yield begin, None
            begin = file.tell()


def _too_long(number: int) -> LineError:
    text = f"a line has at most {MOST_LINE_BYTES} bytes"
    return LineError("invalid_json_line", text, None, number)
