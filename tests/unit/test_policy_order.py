"""Which requests go last."""

from random import Random

import pytest

from foretell.model import LengthEstimate, RequestSpec
from foretell.policy.order import LARGEST, WINDOW, LargestLast, size_of, sooner


def asks(output: float, prompt: int = 100, priority: int = 0, sequences: int = 1) -> RequestSpec:
    length = LengthEstimate(output)
    return RequestSpec("r", prompt, 0, length, priority=priority, sequences=sequences)


def after(*outputs: float) -> LargestLast:
    order = LargestLast()
    for output in outputs:
        order.ranked(asks(output))
    return order


def few_large(requests: int, draws: Random) -> list[float]:
    """A tenth of the requests needs nearly all memory."""
    return [draws.uniform(1000, 2000) if draws.random() < 0.1 else 10.0 for _ in range(requests)]


def test_a_part_goes_last_and_it_is_the_largest() -> None:
    draws = Random(1)
    order, outputs = after(*few_large(WINDOW, draws)), few_large(2000, draws)
    last = [output for output in outputs if order.ranked(asks(output)).priority == 1]
    assert 0.7 * LARGEST * 2000 < len(last) < 1.3 * LARGEST * 2000
    assert min(last) > 1300


def test_nobody_goes_last_where_all_are_about_as_large() -> None:
    draws = Random(2)
    order = after(*(draws.uniform(100, 300) for _ in range(WINDOW)))
    assert {order.ranked(asks(draws.uniform(100, 300))).priority for _ in range(500)} == {0}


def test_nobody_goes_last_while_little_is_known() -> None:
    order = LargestLast()
    assert {order.ranked(asks(10 if i % 20 else 10_000)).priority for i in range(100)} == {0}
    assert order.ranked(asks(20_000)).priority == 1


def test_what_was_long_ago_is_forgotten() -> None:
    order = after(*few_large(WINDOW, Random(3)), *[10.0] * WINDOW)
    assert order.ranked(asks(2000)).priority == 0  # there was no large one lately


@pytest.mark.parametrize(("given", "ranked"), [(-3, -2), (2**31 - 1, 2**31 - 1)])
def test_a_priority_that_was_given_stays_in_its_class(given: int, ranked: int) -> None:
    order = after(*few_large(WINDOW, Random(4)))
    assert order.ranked(asks(3000, priority=given)).priority == ranked
    assert sooner(asks(1, priority=-(2**31))).priority == -(2**31)


def test_size_is_tokens_held_times_steps() -> None:
    assert size_of(asks(10, prompt=100)) == sum(100 + step for step in range(10)) + 5
    assert size_of(asks(10, prompt=100, sequences=3)) == 3 * size_of(asks(10, prompt=100))
