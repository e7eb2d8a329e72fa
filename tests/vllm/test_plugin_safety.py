"""No fault in the plugin changes what the engine does."""

import time
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from foretell.services.backend import publisher
from foretell.services.backend.vllm import plugin
from foretell.services.backend.vllm.plugin import ForetellScheduler
from foretell.services.process.memory_log import LogReader, path_of
from foretell.tools.verify.engine_loop import VerifiedLoop
from foretell.tools.verify.installed import build_scheduler, engine_config
from foretell.v1 import snapshot_pb2
from tests.vllm.plugged import SYNC, endpoint, next_snapshot, warned
from tests.vllm.scenarios import VARIANTS, drive

__all__ = ["endpoint", "warned"]


pytestmark = pytest.mark.vllm


@pytest.fixture
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is published when it begins, so that steps can be counted."""
    monkeypatch.setattr(plugin, "REPORTED_WITHIN_S", 0.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_scheduling_is_stock(variant: str, endpoint: str) -> None:
    config = VARIANTS[variant]
    assert drive(config, ForetellScheduler, 11) == drive(config, None, 11)


def test_the_base_is_the_one_vllm_would_choose(endpoint: str) -> None:
    sync = build_scheduler(engine_config(), ForetellScheduler)
    assert isinstance(sync, Scheduler)
    assert not isinstance(sync, AsyncScheduler)
    overlapped = build_scheduler(engine_config(async_scheduling=True), ForetellScheduler)
    assert isinstance(overlapped, AsyncScheduler)
    for scheduler in (sync, overlapped):
        scheduler.shutdown()


def test_without_an_endpoint_it_stays_off(
    monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    monkeypatch.delenv("FORETELL_PLUGIN_SNAPSHOT_ENDPOINT", raising=False)
    assert build_scheduler(SYNC, ForetellScheduler).foretell is None
    assert warned == []


class Broken:
    """A publisher whose `send` fails at every `period`-th call."""

    def __init__(self, period: int) -> None:
        self.period = period
        self.calls = 0
        self.closed = 0

    def __call__(self, endpoint: str) -> "Broken":
        return self

    def send(self, base: bytes, rest: bytes, once: bytes) -> None:
        self.calls += 1
        if self.calls % self.period == 0:
            raise RuntimeError("the wire is cut")

    def close(self) -> None:
        self.closed += 1
        raise RuntimeError("cannot even close")


def test_a_publisher_that_always_fails_is_switched_off(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    broken = Broken(period=1)
    monkeypatch.setattr(publisher, "SnapshotPublisher", broken)
    assert drive(SYNC, ForetellScheduler, 3) == drive(SYNC, None, 3)
    assert broken.calls == 10
    assert broken.closed == 1
    first, last = warned
    assert "a snapshot failed" in first
    assert "switched off after 10 failures" in last
    assert "the wire is cut" in first


@pytest.mark.usefixtures("told_at_once")
def test_a_few_failures_do_not_end_publishing(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    broken = Broken(period=100)
    monkeypatch.setattr(publisher, "SnapshotPublisher", broken)
    iterations = drive(SYNC, ForetellScheduler, 3)
    assert broken.calls > sum(1 for i in iterations if i.scheduled)
    assert len(warned) == 1


@pytest.mark.usefixtures("told_at_once")
def test_hooks_that_fail_never_reach_the_engine(endpoint: str, warned: list[str]) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("a bug of ours")

    stock = drive(SYNC, None, 4)
    for hook in ("scheduled", "updating", "updated"):

        def broken(loop: VerifiedLoop, hook: str = hook) -> None:
            setattr(loop.scheduler.foretell.recorder, hook, fail)

        assert drive(SYNC, ForetellScheduler, 4, observe=broken) == stock
    assert sum("a snapshot failed" in line for line in warned) == 3


def test_a_closed_endpoint_does_no_harm(endpoint: str, warned: list[str]) -> None:
    def close(loop: VerifiedLoop) -> None:
        loop.scheduler.foretell._publisher.close()

    assert drive(SYNC, ForetellScheduler, 6, observe=close) == drive(SYNC, None, 6)
    assert "switched off" in warned[-1]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SNAPSHOT_ENDPOINT", "shm:///dev/null/folder/file", "NotADirectoryError"),
        ("SNAPSHOT_ENDPOINT", "tcp://127.0.0.1:5000", "ValueError"),
    ],
)
def test_bad_settings_leave_the_engine_running(
    name: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    monkeypatch.setenv("FORETELL_PLUGIN_SNAPSHOT_ENDPOINT", "shm:///never-bound")
    monkeypatch.setenv(f"FORETELL_PLUGIN_{name}", value)
    loop = VerifiedLoop(SYNC, ForetellScheduler)
    assert loop.scheduler.foretell is None
    loop.add("r0", 20, 3)
    assert loop.run()[-1].free_blocks == SYNC.total_blocks
    (line,) = warned
    assert told in line


@pytest.mark.usefixtures("told_at_once")
def test_snapshots_are_logged_in_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "folder" / "snapshots"
    monkeypatch.setenv("FORETELL_PLUGIN_SNAPSHOT_ENDPOINT", f"shm://{log}")
    monkeypatch.setattr(publisher.SnapshotPublisher.__init__, "__defaults__", (60.0,))
    loop = VerifiedLoop(SYNC, ForetellScheduler)
    reader = LogReader(log)
    reader.reopen()
    assert reader.read()  # the idle engine; from here on it receives everything
    loop.add("r0", 20, 3)
    steps = len(loop.run())
    heard = []
    while payload := reader.read():
        heard.append(snapshot_pb2.EngineSnapshot.FromString(payload))
    loop.close()
    reader.close()
    assert [each.sequence for each in heard][-1] >= steps
    assert [list(each.running.request_id) for each in heard].count(["r0"]) == 3
    assert sum(len(each.completed_steps) for each in heard) == 3


@pytest.mark.usefixtures("told_at_once")
def test_snapshots_travel_and_repeat(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher.SnapshotPublisher.__init__, "__defaults__", (0.05,))
    loop = VerifiedLoop(SYNC, ForetellScheduler)
    reader = LogReader(path_of(endpoint))
    last = next_snapshot(reader)
    assert last.sequence == 1
    loop.add("r0", 20, 3)
    loop.run()
    deadline = time.monotonic() + 10
    while (last.sequence < 5 or last.published_unix_s == last.taken_unix_s) and (
        time.monotonic() < deadline
    ):
        last = next_snapshot(reader)
    reader.close()
    # Three steps, then the idle state, which is repeated.
    assert last.sequence == 5
    assert last.published_unix_s > last.taken_unix_s
    assert not last.running.request_id
    loop.scheduler.shutdown()
    assert not loop.scheduler.foretell.active
