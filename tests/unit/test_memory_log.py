"""A log in shared memory: all messages in order, or the newest, and never a torn one."""

import multiprocessing
import resource
from pathlib import Path
from random import Random

import pytest

from foretell.services.process.memory_log import LogReader, LogWriter

SMALL = 1024


def opened(path: Path) -> LogReader:
    reader = LogReader(path)
    reader.reopen()
    return reader


def all_of(reader: LogReader) -> list[bytes]:
    return list(iter(reader.read, None))


def test_every_message_in_order(tmp_path: Path) -> None:
    path, rng = tmp_path / "log", Random(1)
    writer = LogWriter(path, SMALL)
    reader = opened(path)
    assert reader.read() is None
    for number in range(500):
        message = bytes([number % 256]) * rng.randint(0, SMALL // 3)
        writer.write(message)
        assert all_of(reader) == [message]
    writer.close()
    reader.close()


def test_who_comes_late_or_falls_behind_gets_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(path, SMALL)
    early = opened(path)
    for number in range(100):
        writer.write(b"%d" % number * 50)
    late = opened(path)
    assert all_of(late) == [b"99" * 50]
    assert all_of(early) == [b"99" * 50]
    writer.write(b"more")
    assert all_of(late) == all_of(early) == [b"more"]


def test_a_log_made_anew_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = opened(path)
    assert reader.read() is None  # there is no log yet
    first = LogWriter(path, SMALL)
    first.write(b"first")
    reader.reopen()
    assert all_of(reader) == [b"first"]
    reader.reopen()
    assert all_of(reader) == []  # it is still the same log
    first.close()
    second = LogWriter(path, SMALL)
    second.write(b"second")
    reader.reopen()
    assert all_of(reader) == [b"second"]
    third = LogWriter(path, SMALL)
    second.close()  # the file is not its own any more, so it stays
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
    third.close()
    assert list(tmp_path.iterdir()) == []


def test_a_base_is_written_once_and_who_comes_late_begins_with_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer, base, rng = LogWriter(path, SMALL), b"base" * 20, Random(3)
    early, before = opened(path), b""
    for number in range(300):
        if number % 7 == 0:
            base = bytes([number % 256]) * rng.randint(1, 80)
        rest = b"%d" % number
        writer.write(rest, base)
        late = opened(path)
        assert all_of(early) == [base + rest]
        heard = all_of(late)
        assert heard[-1] == base + rest
        assert all(each.startswith(base) for each in heard)
        before = heard[0]
    assert before.endswith(b"294")


def test_a_base_that_would_be_overwritten_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer, base = LogWriter(path, SMALL), b"the same"
    for number in range(1000):
        writer.write(b"%d" % number, base)
        assert all_of(opened(path))[-1] == b"the same%d" % number


def test_a_message_that_is_too_long_is_refused(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log", SMALL)
    with pytest.raises(ValueError, match="600 bytes"):
        writer.write(bytes(600))
    writer.write(b"short")
    assert all_of(opened(tmp_path / "log")) == [b"short"]


@pytest.mark.parametrize("content", [b"", b"x" * 10, b"x" * 4096, bytes(4096)])
def test_another_file_holds_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(content)
    assert opened(tmp_path / "log").read() is None


def _write(path: Path, messages: int) -> None:
    writer, rng = LogWriter(path, SMALL), Random(2)
    for number in range(messages):
        if number % 10 == 0:
            base = b"%06d" % (number // 10)
        writer.write(b"%06d" % number * rng.randint(1, 50), base)
    writer.write(b"end")


def test_nothing_torn_is_read_beside_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "log"
    process = multiprocessing.get_context("spawn").Process(target=_write, args=(path, 20_000))
    process.start()
    reader, heard = LogReader(path), [-1]
    while True:
        message = reader.read()
        if message is None:
            reader.reopen()
        elif message == b"end":
            break
        else:
            base, rest = message[:6], message[6:]
            assert rest == rest[:6] * (len(rest) // 6)
            assert int(rest[:6]) // 10 == int(base)
            heard.append(int(rest[:6]))
    process.join()
    assert heard == sorted(set(heard))


def test_the_newest_message_is_read_once_before_the_writer_has_told_of_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer, reader = LogWriter(path, SMALL), opened(path)
    writer.write(b"first")
    told = path.read_bytes()[16:24]  # the position up to which the writer has written
    writer.write(b"second")
    with path.open("r+b") as file:
        file.seek(16)
        now = file.read(8)
        file.seek(16)
        file.write(told)  # as if the writer had stopped just before
    assert all_of(reader) == [b"second"]
    with path.open("r+b") as file:
        file.seek(16)
        file.write(now)
    assert all_of(reader) == []
    writer.write(b"third")
    assert all_of(reader) == [b"third"]


def test_a_full_disk_is_told_at_once_and_leaves_no_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            LogWriter(tmp_path / "log")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
