"""What clients learn about a batch's end, from its creation on."""

import pytest

from foretell.batch.promises import Promises
from foretell.batch.records import answered
from foretell.batch.states import Batch

NOW = 1000


def batch(name: str, lifetime_s: int = 86_400) -> Batch:
    return Batch(name, "", "file-1", "/v1/completions", "24h", NOW, NOW + lifetime_s)


@pytest.fixture
def seen() -> Promises:
    """Promises after one batch of model m: 10 requests of 50 tokens a second, for 5 s."""
    found = Promises()
    running = batch("batch_0").validated(100, "m", NOW)
    body = b'{"usage": {"prompt_tokens": 20, "completion_tokens": 30}}'
    found.tick(0.0, 10)
    for second in range(1, 6):
        found.learn(running, [answered("r", "c", 200, "r", body) for _ in range(10)])
        running = running.answered(10, 0, running.usage)
        found.tick(float(second), 10)
    found.renew([running], [], NOW)
    return found


def told_s(promises: Promises, of: Batch) -> float:
    """Seconds until the promised end."""
    shown = promises.shown(of)
    assert shown is not None
    return shown["done_by"] - NOW


def test_the_promise_of_a_cancelled_batch_is_forgotten(seen: Promises) -> None:
    cancelled = batch("batch_0").validated(100, "m", NOW)
    seen.renew([], [], NOW)
    assert seen.kept(cancelled.id, NOW) is None


def test_a_new_batch_is_told_its_end_at_once(seen: Promises) -> None:
    new = batch("batch_1")
    assert seen.shown(new) is None
    seen.quote(new.id, 200, "m", NOW)
    # 50 requests are left of the other batch, and 200 of its own: 10 a second.
    assert 25 <= told_s(seen, new) <= 28
    first = seen.shown(new)
    assert first is not None
    assert first["confidence"] == 0.9
    assert first["in_time"]
    seen.renew([], [new], NOW)
    assert seen.due == [(pytest.approx(NOW + 26.5, abs=1.5), pytest.approx(26.5, abs=1.5))]
    assert seen.shown(new) == first
    begun = new.validated(200, "m", NOW)
    seen.renew([begun], [], NOW)
    assert 20 <= told_s(seen, begun) <= 23, "the other one has ended"
    assert seen.kept(new.id, NOW + 25), "what was told first counts"
    assert seen.shown(new) is not None
    seen.renew([], [], NOW)
    assert seen.shown(new) is None
    assert seen.due == []


def test_the_latest_end_counts_for_all(seen: Promises) -> None:
    running = [batch(name).validated(100, "m", NOW) for name in ("batch_0", "batch_1")]
    assert 5 <= seen.left_s(running[:1], NOW) <= 7
    assert seen.left_s(running, NOW) == seen.left_s(running[:1], NOW)
    seen.renew(running, [], NOW)
    # Of each batch 100 requests are left here, at 10 a second.
    assert 20 <= seen.left_s(running, NOW) <= 23
    assert seen.left_s(running, NOW + 30) == 0
    assert seen.left_s([], NOW) == 0


def test_who_wants_it_too_soon_is_told_how_soon_it_can_be(seen: Promises) -> None:
    new = batch("batch_1", lifetime_s=20)
    seen.quote(new.id, 200, "m", NOW)
    assert 25 <= told_s(seen, new) <= 28
    shown = seen.shown(new)
    assert shown is not None
    assert not shown["in_time"]


def test_nothing_is_told_of_what_is_not_known(seen: Promises) -> None:
    for requests, model in ((0, "m"), (10, "another")):
        seen.quote("batch_1", requests, model, NOW)
        assert seen.shown(batch("batch_1")) is None


def test_a_batch_is_due_when_it_was_promised_or_else_when_it_expires(seen: Promises) -> None:
    known, unknown = (
        batch(name).validated(100, model, NOW) for name, model in (("a", "m"), ("b", "x"))
    )
    seen.renew([known, unknown], [], NOW)
    (due_s, left_s), other = seen.due
    assert left_s is not None
    assert due_s == NOW + left_s
    assert other == (unknown.expires_unix_s, None)
    seen.renew([known], [], due_s - 1)
    assert seen.due[0][0] == due_s
    seen.renew([known], [], due_s + 1)  # the promise is broken: what is left is its expiry
    assert seen.due[0][0] == known.expires_unix_s
