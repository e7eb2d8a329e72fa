"""What is told of a batch's end, from its creation on."""

import pytest

from foretell.batch.records import answered
from foretell.batch.states import Batch
from services.batch import promises
from services.batch.promises import Promises

NOW = 1000


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def batch(name: str, lifetime_s: int = 86_400) -> Batch:
    return Batch(name, "", "file-1", "/v1/completions", "24h", NOW, NOW + lifetime_s)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Promises:
    """It has seen a batch of the model m: 10 requests of 50 tokens in each second."""
    clock = Clock()
    monkeypatch.setattr(promises, "time", clock)
    found = Promises()
    running = batch("batch_0").validated(100, "m", NOW)
    body = b'{"usage": {"prompt_tokens": 20, "completion_tokens": 30}}'
    for _ in range(5):
        found.learn(running, [answered("r", "c", 200, "r", body) for _ in range(10)])
        running = running.answered(10, 0, running.usage)
        clock.now_s += 1.0
        found.tick(busy=True)
    found.renew([running], [], NOW)
    return found


def test_a_new_batch_is_told_its_end_at_once(seen: Promises) -> None:
    new = batch("batch_1")
    assert seen.shown(new) is None
    seen.quote(new.id, 200, "m", NOW)
    # 50 requests that are left of the other and 200 of its own, 10 a second.
    expected = {"done_by": NOW + 25, "confidence": 0.9, "in_time": True}
    assert seen.shown(new) == expected
    seen.renew([], [new.id], NOW)
    assert seen.shown(new) == expected
    begun = new.validated(200, "m", NOW)
    seen.renew([begun], [], NOW)
    assert seen.shown(begun) == {"done_by": NOW + 20, "confidence": 0.9, "in_time": True}
    assert seen.kept(new.id, NOW + 25), "what was told first counts"
    assert seen.shown(new) is not None
    seen.renew([], [], NOW)
    assert seen.shown(new) is None


def test_the_latest_end_counts_for_all(seen: Promises) -> None:
    running = [batch(name).validated(100, "m", NOW) for name in ("batch_0", "batch_1")]
    assert seen.left_s(running, NOW) == seen.left_s(running[:1], NOW) == 5
    seen.renew(running, [], NOW)
    # Of each 100 requests are left here, 10 a second.
    assert seen.left_s(running, NOW) == 20
    assert seen.left_s(running, NOW + 30) == 0
    assert seen.left_s([], NOW) == 0


def test_who_wants_it_too_soon_is_told_how_soon_it_can_be(seen: Promises) -> None:
    new = batch("batch_1", lifetime_s=20)
    seen.quote(new.id, 200, "m", NOW)
    assert seen.shown(new) == {"done_by": NOW + 25, "confidence": 0.9, "in_time": False}


def test_nothing_is_told_of_what_is_not_known(seen: Promises) -> None:
    for requests, model in ((0, "m"), (10, "another")):
        seen.quote("batch_1", requests, model, NOW)
        assert seen.shown(batch("batch_1")) is None
