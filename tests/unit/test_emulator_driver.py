"""The emulated engine's loop, under a clock that the test drives."""

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from foretell.engine import Sequence, Twin
from foretell.latency.linear import LinearStepTime
from foretell.model import OFFLINE_PRIORITY, EngineConfig
from foretell.services.backend.emulator import driver as driver_module
from foretell.services.backend.emulator.driver import EmulatedSequence, EmulatorDriver, RefusedError
from foretell.services.backend.emulator.snapshot import RequestTag, SnapshotFeed
from foretell.v1 import snapshot_pb2

CONFIG = EngineConfig("m", 16, 64, 8, 512, 1000)
STEP_S = 0.1


class Clock:
    """Time that passes only in `sleep`, which sleeps too long by `late_s`."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.late_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds + (self.late_s.pop(0) if self.late_s else 0.0)
        await asyncio.sleep(0)


class Heard:
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.snapshots: list[snapshot_pb2.EngineSnapshot] = []
        self.idle = asyncio.Event()

    def send(self, base: bytes, rest: bytes, once: bytes) -> None:
        snapshot = snapshot_pb2.EngineSnapshot.FromString(base + rest + once)
        self.snapshots.append(snapshot)
        if snapshot.steps_in_flight:
            self.idle.clear()
        else:
            self.idle.set()

    def starts_s(self) -> list[float]:
        """When each step began."""
        steps = [step for s in self.snapshots for step in s.steps_in_flight]
        return [round(step.started_unix_s - 1000.0, 9) for step in steps]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(driver_module, "time", clock)
    monkeypatch.setattr(
        driver_module, "asyncio", SimpleNamespace(sleep=clock.sleep, Event=asyncio.Event)
    )
    return clock


def make(heard: Heard, config: EngineConfig = CONFIG, **options: Any) -> EmulatorDriver:
    return EmulatorDriver(
        Twin(config),
        LinearStepTime((STEP_S, 0.0, 0.0, 0.0, 0.0, 0.0)),
        **{
            "speedup": 1.0,
            "noise": lambda: 0.0,
            "max_queue": 4,
            "feed": SnapshotFeed(heard.send, "e", "run", config),
            **options,
        },
    )


def stream(name: str, tokens: int, every_token: bool = False) -> EmulatedSequence:
    return EmulatedSequence(
        Sequence(name, 20, tokens, tokens), RequestTag(), asyncio.Event(), every_token
    )


@contextlib.asynccontextmanager
async def stepping(driver: EmulatorDriver) -> Any:
    task = asyncio.create_task(driver.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def finished(one: EmulatedSequence, heard: Heard) -> None:
    """Wait until `one` has ended and the engine has reported that it is idle."""
    async with asyncio.timeout(10):
        while not one.finished:
            await one.wake.wait()
            one.wake.clear()
        await heard.idle.wait()


async def test_late_timers_do_not_add_up(clock: Clock) -> None:
    heard = Heard()
    driver, one = make(heard), stream("a", 4)
    clock.late_s = [0.004, 0.003, 0.0, 0.0]
    async with stepping(driver):
        driver.submit([one])
        await finished(one, heard)
    assert heard.starts_s() == [0.0, 0.104, 0.203, 0.3]
    durations = [step.duration_s for s in heard.snapshots for step in s.completed_steps]
    assert durations == pytest.approx([0.104, 0.099, 0.097, 0.1])


async def test_a_stall_is_not_caught_up(clock: Clock) -> None:
    heard = Heard()
    driver, one = make(heard), stream("a", 3)
    clock.late_s = [5.0]
    async with stepping(driver):
        driver.submit([one])
        await finished(one, heard)
    assert heard.starts_s() == [0.0, 5.1, 5.2]


async def test_speedup_and_noise_scale_the_step(clock: Clock) -> None:
    heard, noises = Heard(), iter([0.5, -0.5, 0.0])
    driver, one = make(heard, speedup=2.0, noise=lambda: next(noises)), stream("a", 3)
    async with stepping(driver):
        driver.submit([one])
        await finished(one, heard)
    assert heard.starts_s() == [0.0, 0.075, 0.1]


async def test_readers_wake_for_every_token_or_for_the_last(clock: Clock) -> None:
    driver = make(Heard())
    eager, patient = stream("a", 3, every_token=True), stream("b", 3)
    seen = []
    async with stepping(driver):
        driver.submit([eager, patient])
        while not eager.finished:
            await eager.wake.wait()
            eager.wake.clear()
            seen.append((eager.tokens, patient.wake.is_set()))
    assert seen == [(1, False), (2, False), (3, True)]
    assert not driver._streams


async def test_an_abort_in_flight_hands_out_nothing_more(clock: Clock) -> None:
    heard = Heard()
    driver = make(heard)
    one, two = stream("a", 100, every_token=True), stream("b", 5)
    async with stepping(driver):
        driver.submit([one, two])
        await one.wake.wait()
        driver.abort(one)
        driver.abort(one)
        assert len(driver._streams) == 1
        await finished(two, heard)
    assert one.tokens == 1
    assert [list(s.running.request_id) for s in heard.snapshots[:3]] == [["a", "b"]] * 2 + [["b"]]
    assert heard.snapshots[-1].free_blocks == CONFIG.total_blocks


async def test_an_abort_may_come_before_the_engine_saw_the_request(clock: Clock) -> None:
    heard = Heard()
    driver, one = make(heard), stream("a", 100)
    driver.submit([one])
    driver.abort(one)
    async with stepping(driver):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert heard.starts_s() == []


async def test_the_queue_takes_all_sequences_of_a_request_or_none() -> None:
    driver = make(Heard())
    driver.submit([stream(f"a{i}", 1) for i in range(3)])
    with pytest.raises(RefusedError):
        driver.submit([stream(f"b{i}", 1) for i in range(2)])
    assert len(driver._streams) == 3


async def test_a_failed_engine_wakes_who_waits(clock: Clock) -> None:
    def broken() -> float:
        raise ArithmeticError

    driver, one = make(Heard(), noise=broken), stream("a", 3)
    driver.submit([one])
    with pytest.raises(ArithmeticError):
        await driver.run()
    assert driver.stopped
    assert one.wake.is_set()
    assert not one.finished


async def test_online_requests_do_not_wait_for_offline_ones(clock: Clock) -> None:
    heard = Heard()
    driver = make(heard, replace(CONFIG, co_schedules=True))
    offline = [stream(f"offline {i}", 50, every_token=True) for i in range(3)]
    for each in offline:
        each.sequence.row["priority"] = OFFLINE_PRIORITY
    online = EmulatedSequence(
        Sequence("online", 900, 1, 1, arrival_s=1000.0, targets_s=(1.0, 0.5)),
        RequestTag(),
        asyncio.Event(),
        False,
    )
    async with stepping(driver):
        driver.submit(offline)
        async with asyncio.timeout(10):
            await offline[0].wake.wait()
            driver.submit([online])
            await online.wake.wait()
    assert online.finished
    assert not any(each.finished for each in offline)
    told = [
        (ttft_s, snapshot.online_ttft_s, snapshot.config.co_schedules)
        for snapshot in heard.snapshots
        for name, ttft_s in zip(
            snapshot.running.request_id, snapshot.running.ttft_target_s, strict=True
        )
        if name == "online"
    ]
    assert set(told) == {(1.0, 1.0, True)}
