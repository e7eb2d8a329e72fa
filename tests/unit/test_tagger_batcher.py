"""The micro-batcher's memory of how long a batch takes."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from services.tagger.batcher import MicroBatcher, Unanswered
from services.tagger.metrics import TaggerMetrics

SLOW_S = 0.3


class OnceSlow:
    """Takes `SLOW_S` for its first batch, and no time for later ones."""

    def __init__(self) -> None:
        self.calls = 0

    def predict(self, prompts: Sequence[str]) -> list[float]:
        self.calls += 1
        if self.calls == 1:
            time.sleep(SLOW_S)
        return [1.0] * len(prompts)


async def test_a_slow_model_is_passed_by_until_it_has_been_forgiven() -> None:
    regressor = OnceSlow()
    batcher = MicroBatcher(
        regressor.predict, TaggerMetrics(), max_batch=4, window_s=0.0, max_queue=8
    )
    try:
        assert await batcher.submit("first", None) == 1.0
        with pytest.raises(Unanswered) as refusal:
            await batcher.submit("impatient", SLOW_S / 2)
        assert refusal.value.reason == "deadline"
        assert regressor.calls == 1, "refused at once, not queued"
        for _ in range(20):
            try:
                assert await batcher.submit("again", SLOW_S / 2) == 1.0
                break
            except Unanswered:
                await asyncio.sleep(0)
        assert regressor.calls == 2, "one slow batch shut the model off"
    finally:
        await batcher.close()


async def test_close_answers_those_who_wait() -> None:
    regressor = OnceSlow()
    batcher = MicroBatcher(
        regressor.predict, TaggerMetrics(), max_batch=4, window_s=60.0, max_queue=8
    )
    waiting = [asyncio.create_task(batcher.submit("x", None)) for _ in range(6)]
    await asyncio.sleep(0)
    await batcher.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(result) for result in results] == ["closed"] * 6
    assert all(isinstance(result, Unanswered) for result in results)
