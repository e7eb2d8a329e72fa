"""The request log when the disk is full."""

import logging
from pathlib import Path

import pytest

from foretell.services.scheduler.record.request_log import RequestLog


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
async def test_lines_that_a_full_disk_does_not_take_are_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost: list[int] = []
    log = RequestLog("/dev/full", 1 << 20, lost.append)
    for number in range(6):
        log._add({"request_id": number})
        if number % 2:
            log._write()
    log.close()
    assert lost == [2, 2, 2]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0].getMessage()


async def test_a_disk_that_has_room_again_gets_what_comes(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    lost: list[int] = []
    log = RequestLog(str(path), 1 << 20, lost.append)
    log._add({"request_id": 1})
    log.close()
    assert path.read_bytes() == b'{"request_id":1}\n'
    assert not lost
