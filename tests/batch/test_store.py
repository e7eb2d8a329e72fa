"""The batch store: claims and fences of lines, pages of lists, failing storage."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from workers import URL, add_batch, request

from foretell.batch.records import answered
from foretell.batch.states import Batch, Status
from foretell.services.batch import advance
from foretell.services.batch.advance import seal, time_out, validate
from foretell.services.batch.store import (
    BATCHES_KEPT_S,
    BatchStore,
    IdempotencyConflict,
    InUse,
    Lost,
)
from foretell.services.batch.uploads import Upload
from foretell.services.batch.work import LEASE_S, Work, all_lines
from foretell.services.process.database import DatabaseError


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[BatchStore]:
    store = BatchStore(tmp_path, clock)
    yield store
    store.close()


def begun(store: BatchStore, lines: int) -> Batch:
    work = Work(store)
    batch_id = add_batch(store, f"batch_{random.random()}", lines)
    assert work.take(batch_id)
    batch = validate(work, store.open_batches()[-1], None)
    assert batch.status is Status.IN_PROGRESS
    work.leave()
    return batch


def record(line: int, who: int):
    return answered("r", f"c{line}", 200, "r", b'{"by": %d}' % who)


@pytest.mark.parametrize("seed", range(6))
def test_each_line_is_kept_once_by_who_holds_it(store: BatchStore, clock: Clock, seed: int) -> None:
    rng = random.Random(seed)
    batch = begun(store, 12)
    workers = [Work(store) for _ in range(3)]
    believed: dict[int, dict[int, None]] = {each.token: {} for each in workers}
    kept: dict[int, bytes] = {}
    for _ in range(400):
        worker = rng.choice(workers)
        mine = believed[worker.token]
        match rng.randrange(6):
            case 0:
                found = [place.line for place in worker.claim(batch.id, rng.randint(1, 4))]
                assert not set(found) & set(kept)
                mine.update(dict.fromkeys(found))
            case 1 | 2 if mine:
                line = rng.choice(list(mine))
                counted = store.batch("", batch.id).counts.completed
                if store.batch("", batch.id).status is not Status.IN_PROGRESS:
                    with pytest.raises(Lost):
                        worker.complete(batch.id, [(line, record(line, worker.token))])
                    continue
                now_kept = worker.complete(batch.id, [(line, record(line, worker.token))])
                del mine[line]
                after = store.batch("", batch.id)
                assert after.counts.completed == counted + len(now_kept)
                if now_kept:
                    assert line not in kept
                    kept[line] = record(line, worker.token).line
            case 3:
                worker.renew()
            case 4:
                clock.now_s += rng.choice((1.0, LEASE_S))
            case 5:
                worker.give_back(batch.id, list(mine)[:1])
        # Stored records never change, and no line has two holders.
        now = {each.line: each.record for each in all_lines(store, batch.id) if each.ok}
        assert now == kept
    while store.batch("", batch.id).status is Status.IN_PROGRESS:
        clock.now_s += LEASE_S + 1
        last = Work(store)
        for place in last.claim(batch.id, 100):
            last.complete(batch.id, [(place.line, record(place.line, last.token))])
    assert store.batch("", batch.id).counts.completed == 12


def test_a_worker_believed_dead_changes_nothing(store: BatchStore, clock: Clock) -> None:
    batch = begun(store, 2)
    slow, other = Work(store), Work(store)
    assert len(slow.claim(batch.id, 5)) == 2
    assert not other.claim(batch.id, 5)
    clock.now_s += LEASE_S + 1
    other.renew()
    assert len(other.claim(batch.id, 5)) == 2
    slow.complete(batch.id, [(1, record(1, slow.token))])
    assert store.batch("", batch.id).counts.completed == 0
    other.complete(batch.id, [(n, record(n, other.token)) for n in (1, 2)])
    after = store.batch("", batch.id)
    assert after.status is Status.FINALIZING
    assert other.take(batch.id)
    clock.now_s += LEASE_S + 1
    third = Work(store)
    assert third.take(batch.id)
    with pytest.raises(Lost):
        seal(other, after)
    assert seal(third, after).status is Status.COMPLETED
    with pytest.raises(Lost):
        seal(third, after)


def test_lines_are_claimed_in_the_order_of_their_ranks(store: BatchStore) -> None:
    batch = begun(store, 6)
    work = Work(store)
    work.rank(batch.id, [5, 2, 6, 1, 3])
    found = [place.line for most in (2, 1, 9) for place in work.claim(batch.id, most)]
    assert found == [4, 5, 2, 6, 1, 3], "the one without a rank comes first"


def test_tables_that_were_made_without_ranks_get_them(store: BatchStore, tmp_path: Path) -> None:
    batch = begun(store, 3)
    with store.database.changing() as rows:
        rows.run("DROP INDEX ranked_lines")
        rows.run("ALTER TABLE lines DROP COLUMN rank")
    for _ in range(2):
        again = BatchStore(tmp_path)
        work = Work(again)
        work.rank(batch.id, [3, 1, 2])
        assert [place.line for place in work.claim(batch.id, 9)] == [3, 1, 2]
        work.leave()
        again.close()


def test_no_answer_counts_after_a_cancel(store: BatchStore) -> None:
    batch = begun(store, 2)
    work = Work(store)
    work.claim(batch.id, 1)
    store.change(batch.id, lambda known: known.cancel(store.now()))
    with pytest.raises(Lost):
        work.complete(batch.id, [(1, record(1, 1))])


def test_a_batch_whose_time_is_over_before_it_began(store: BatchStore) -> None:
    batch_id = add_batch(store, "batch_1", 2)
    work = Work(store)
    batch = store.open_batches()[0]
    assert time_out(work, batch).status is Status.EXPIRED
    assert work.take(batch_id)
    with pytest.raises(Lost):
        validate(work, batch, None)


def test_errors_of_validation(store: BatchStore) -> None:
    upload = Upload(store)
    upload.write(request(1) + b"x\n" + request(1))
    file = upload.finish("", "f")
    store.add_batch(Batch("batch_1", "", file.id, URL, "24h", 0, 1 << 40))
    work = Work(store)
    assert work.take("batch_1")
    batch = validate(work, store.open_batches()[0], {"m"})
    found = [(error.code, error.line) for error in batch.errors]
    assert found == [("invalid_json_line", 2), ("duplicate_custom_id", 3)]
    assert not list(all_lines(store, "batch_1"))


def test_files_of_any_number_of_lines(store: BatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advance, "_CHUNK_LINES", 2)
    for count in (1, 2, 3, 4):
        batch = begun(store, count)
        assert [each.line for each in all_lines(store, batch.id)] == list(range(1, count + 1))


def test_pages_of_lists(store: BatchStore) -> None:
    ids = [add_batch(store, f"batch_{number}", 1) for number in range(5)]
    first = store.batches("", "", 2)
    assert [each.id for each in first] == ids[:2:-1]
    assert [each.id for each in store.batches("", first[-1].id, 10)] == ids[2::-1]
    assert store.batches("", "unknown", 10) is None
    assert store.batches("somebody else", "", 10) == []
    assert store.batches("somebody else", ids[0], 10) is None
    files = store.files("", "", 10)
    assert store.files("", files[1].id, 10) == files[2:]
    assert store.files("", files[1].id, 10, ascending=True) == files[:1]
    assert store.files("", "", 10, purpose="batch_output") == []


def test_the_same_request_with_the_same_key_is_one_batch(store: BatchStore) -> None:
    add_batch(store, "batch_1", 1)
    file = store.files("", "", 1)[0]
    new = Batch("batch_2", "", file.id, URL, "24h", 0, 1 << 40)
    assert store.add_batch(new, idempotency_key="k").id == "batch_2"
    again = Batch("batch_3", "", file.id, URL, "24h", 5, 1 << 41)
    assert store.add_batch(again, idempotency_key="k").id == "batch_2"
    other = Batch("batch_4", "", file.id, URL, "24h", 5, 1 << 41, metadata={"a": "b"})
    with pytest.raises(IdempotencyConflict):
        store.add_batch(other, idempotency_key="k")


def test_files_that_expire(store: BatchStore, clock: Clock) -> None:
    add_batch(store, "batch_1", 1)
    (file,) = store.files("", "", 10)
    with pytest.raises(InUse):
        store.delete_file("", file.id)
    clock.now_s = file.expires_unix_s
    assert store.file("", file.id) is None
    store.clean()
    assert store.storage.path(file.id).exists(), "a batch reads it"
    time_out(Work(store), store.open_batches()[0])
    store.clean()
    assert not store.storage.path(file.id).exists()


def test_batches_that_ended_long_ago_are_forgotten(store: BatchStore, clock: Clock) -> None:
    names = [add_batch(store, f"batch_{number}", 1) for number in range(3)]
    work = Work(store)
    for name in names[:2]:
        store.change(name, lambda known: known.cancel(store.now()))
        assert work.take(name)
        seal(work, store.batch("", name))
    store.clean()
    assert all(store.batch("", name) for name in names)
    clock.now_s = store.batch("", names[0]).expires_unix_s + BATCHES_KEPT_S + 1
    store.clean()
    assert [each.id for each in store.batches("", "", 10)] == names[2:], "it has not ended"


def test_what_ended_processes_left_is_removed(store: BatchStore, clock: Clock) -> None:
    upload = Upload(store)
    upload.write(b"x")
    left = store.storage.path("left")
    left.write_bytes(b"x")
    store.clean()
    assert left.exists(), "it may be in the making"
    clock.now_s = left.stat().st_mtime + 7200
    store.clean()
    assert not left.exists()
    upload.abort()
    assert not list(left.parent.iterdir())


def test_a_full_database_loses_nothing(store: BatchStore) -> None:
    batch = begun(store, 3)
    work = Work(store)
    assert len(work.claim(batch.id, 3)) == 3
    work.complete(batch.id, [(1, record(1, 1))])
    with store.database.reading() as rows:
        pages = rows.run("PRAGMA page_count").scalar_one()
        rows.run(f"PRAGMA max_page_count = {pages}")
    large = answered("r", "c", 200, "r", b'{"a": "%s"}' % (b"x" * 100_000))
    with pytest.raises(DatabaseError, match="full"):
        work.complete(batch.id, [(2, large)])
    assert store.batch("", batch.id).counts.completed == 1
    with store.database.reading() as rows:
        rows.run("PRAGMA max_page_count = 1000000")
    assert len(work.complete(batch.id, [(2, large), (3, large)])) == 2
    assert store.batch("", batch.id).status is Status.FINALIZING


def test_a_store_is_closed_once_nobody_uses_it(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    begun, go_on, done = threading.Event(), threading.Event(), []

    def use() -> None:
        with store.database.reading() as rows:
            begun.set()
            go_on.wait(60)
            done.append(rows.run("SELECT 1").scalar_one())

    user = threading.Thread(target=use)
    user.start()
    assert begun.wait(60)
    closer = threading.Thread(target=store.close)
    closer.start()
    go_on.set()
    closer.join(60)
    user.join(60)
    assert done == [1]
    with pytest.raises(DatabaseError, match="closed"):
        store.files("", "", 1)


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    def full(operation: str) -> None:
        if operation == "fsync":
            raise OSError(28, "No space left on device")

    store = BatchStore(tmp_path, notice=full)
    upload = Upload(store)
    upload.write(b"x")
    with pytest.raises(OSError, match="No space"):
        upload.finish("", "f")
    assert store.files("", "", 10) == []
    assert not list((tmp_path / "files").iterdir())
    store.close()
