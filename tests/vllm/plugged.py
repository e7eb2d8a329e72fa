"""An engine's scheduler with the plugin, and what it logs."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foretell.services.process.memory_log import LogReader
from foretell.v1 import snapshot_pb2
from tests.vllm.scenarios import VARIANTS

SYNC = VARIANTS["sync-fcfs"]


class Lines(logging.Handler):
    """What the plugin logs at WARNING or above, one formatted record each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def warned() -> Iterator[list[str]]:
    handler, logger = Lines(), logging.getLogger("vllm.foretell")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    result = f"shm://{tmp_path}/snapshots"
    monkeypatch.setenv("FORETELL_PLUGIN_SNAPSHOT_ENDPOINT", result)
    return result


def next_snapshot(log: LogReader) -> snapshot_pb2.EngineSnapshot:
    deadline = time.monotonic() + 10
    while (payload := log.read()) is None:
        assert time.monotonic() < deadline, "nothing is published"
        log.reopen()
        time.sleep(0.001)
    return snapshot_pb2.EngineSnapshot.FromString(payload)
