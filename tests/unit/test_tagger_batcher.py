"""The micro-batcher's memory of how long a batch takes."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from services.tagger.batcher import MicroBatcher, Unanswered
from services.tagger.metrics import TaggerMetrics

SLOW_S = 0.3


class OnceSlow:
    """Takes `SLOW_S` for its first batch, and no time for later ones."""

    def __init__(self) -> None:
        self.calls = 0
        self.began = threading.Event()

    def predict(self, prompts: Sequence[str]) -> list[float]:
        self.calls += 1
        self.began.set()
        if self.calls == 1:
            time.sleep(SLOW_S)
        return [1.0] * len(prompts)


def make(
    predict: Callable[[Sequence[str]], list[float]], **changes: float
) -> MicroBatcher[str, float]:
    options = {"budget_s": 1.0, **changes}
    return MicroBatcher(predict, TaggerMetrics(), max_batch=4, max_queue=8, **options)


async def test_a_slow_model_is_passed_by_until_it_has_been_forgiven() -> None:
    regressor = OnceSlow()
    batcher = make(regressor.predict)
    try:
        assert await batcher.submit("first", None) == 1.0
        with pytest.raises(Unanswered) as refusal:
            await batcher.submit("impatient", SLOW_S / 2)
        assert refusal.value.reason == "deadline"
        assert regressor.calls == 1, "refused at once, not queued"
        for _ in range(200):
            try:
                assert await batcher.submit("again", SLOW_S / 2) == 1.0
                break
            except Unanswered:
                await asyncio.sleep(0.02)
        assert regressor.calls == 2, "one slow batch shut the model off"
    finally:
        await batcher.close()


async def test_close_answers_those_who_wait() -> None:
    regressor = OnceSlow()
    batcher = make(regressor.predict)
    waiting = [batcher.submit("x", None) for _ in range(6)]
    await asyncio.sleep(0)
    await batcher.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(result) for result in results] == ["closed"] * 6
    assert all(isinstance(result, Unanswered) for result in results)


async def test_a_batch_is_no_larger_than_there_is_time_for() -> None:
    """Each prompt takes 10 ms at least, and a batch may take 15."""
    sizes = []

    def predict(prompts: Sequence[str]) -> list[float]:
        sizes.append(len(prompts))
        time.sleep(0.01 * len(prompts))
        return [1.0] * len(prompts)

    batcher = make(predict, budget_s=0.015)
    try:
        await batcher.submit("shows how long one takes", None)
        await asyncio.gather(*(batcher.submit("x", None) for _ in range(6)))
    finally:
        await batcher.close()
    assert sizes == [1] * 7


async def test_what_would_come_too_late_is_not_read() -> None:
    """Nothing was known of the model's speed when the second one was let in."""
    regressor = OnceSlow()
    batcher = make(regressor.predict)
    try:
        first = batcher.submit("first", None)
        await asyncio.to_thread(regressor.began.wait, 60.0)
        with pytest.raises(Unanswered) as refusal:
            await batcher.submit("has time for half of it", 1.5 * SLOW_S)
        assert refusal.value.reason == "deadline"
        assert await first == 1.0
        assert regressor.calls == 1
    finally:
        await batcher.close()


async def test_an_unsteady_model_is_given_less() -> None:
    """It takes 50 ms on average: 120 would do, were it not 100 as often as none."""
    durations_s = [0.0, 0.1] * 5
    taken = iter([*durations_s, 0.0])

    def predict(prompts: Sequence[str]) -> list[float]:
        time.sleep(next(taken))
        return [1.0] * len(prompts)

    batcher = make(predict)
    try:
        for _ in durations_s:
            await batcher.submit("x", None)
        with pytest.raises(Unanswered):
            await batcher.submit("y", 0.12)
    finally:
        await batcher.close()
