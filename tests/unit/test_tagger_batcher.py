"""How the micro-batcher handles a slow model, and its own end."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from foretell.services.tagger.batcher import MicroBatcher, Unanswered
from foretell.services.tagger.metrics import TaggerMetrics


def make(
    predict: Callable[[Sequence[str]], list[float]], **changes: float
) -> MicroBatcher[str, float]:
    options = {"budget_s": 1.0, **changes}
    return MicroBatcher(predict, TaggerMetrics(), max_batch=4, max_queue=8, **options)


async def test_close_answers_those_who_wait() -> None:
    """One prompt is being read, one waits for that, and the others wait for their turn."""
    going_on = threading.Event()

    def predict(prompts: Sequence[str]) -> list[float]:
        going_on.wait(60.0)
        return [1.0] * len(prompts)

    batcher = make(predict)
    waiting = [batcher.submit("x") for _ in range(6)]
    await asyncio.sleep(0)
    await batcher.close()
    going_on.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(result) for result in results] == ["closed"] * 6
    assert all(isinstance(result, Unanswered) for result in results)


async def test_a_batch_is_no_larger_than_there_is_time_for() -> None:
    """Each prompt takes at least 10 ms, and a batch may take 15 ms."""
    sizes = []

    def predict(prompts: Sequence[str]) -> list[float]:
        sizes.append(len(prompts))
        time.sleep(0.01 * len(prompts))
        return [1.0] * len(prompts)

    batcher = make(predict, budget_s=0.015)
    try:
        await batcher.submit("shows how long one takes")
        await asyncio.gather(*(batcher.submit("x") for _ in range(6)))
    finally:
        await batcher.close()
    assert sizes == [1] * 7
