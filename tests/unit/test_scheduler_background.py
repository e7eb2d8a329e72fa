"""Work for which no client waits is bounded, and ends with the process."""

import asyncio

import pytest

from foretell.services.scheduler import background
from foretell.services.scheduler.background import Background


async def test_what_is_too_much_is_dropped_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "MAX_TASKS", 2)
    gate, done = asyncio.Event(), list[int]()

    async def work(number: int) -> None:
        await gate.wait()
        done.append(number)

    tasks = Background()
    for number in range(5):
        tasks.spawn(work(number))
    assert [record.args for record in caplog.records] == [(1,), (2,)]
    gate.set()
    await tasks.drain(timeout_s=20.0)
    assert done == [0, 1]
    tasks.spawn(work(7))  # there is room again
    await tasks.drain(timeout_s=20.0)
    assert done == [0, 1, 7]


async def test_what_does_not_end_in_time_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    tasks = Background()
    tasks.spawn(work())
    await asyncio.sleep(0)
    await tasks.drain(timeout_s=0.01)
    assert cancelled.is_set()
