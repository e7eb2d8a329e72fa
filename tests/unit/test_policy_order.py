"""Which requests go last."""

from random import Random

import pytest

from foretell.model import LengthEstimate, Load, Prediction, RequestSpec
from foretell.policy.order import LONGEST_WAIT_S, WINDOW, LargestLast, size_of, waits_too_long


def asks(output: float, prompt: int = 100, priority: int = 0, sequences: int = 1) -> RequestSpec:
    length = LengthEstimate(output)
    return RequestSpec("r", prompt, 0, length, priority=priority, sequences=sequences)


def test_a_tenth_goes_last_and_it_is_the_largest() -> None:
    order, draws = LargestLast(0.1), Random(1)
    for _ in range(WINDOW):
        order.ranked(asks(draws.uniform(1, 1000)))
    outputs = [draws.uniform(1, 1000) for _ in range(2000)]
    last = [output for output in outputs if order.ranked(asks(output)).priority == 1]
    assert 0.07 * 2000 < len(last) < 0.13 * 2000
    assert min(last) > 800


def test_nobody_goes_last_while_little_is_known() -> None:
    order = LargestLast(0.5)
    assert {order.ranked(asks(output)).priority for output in range(1, 101)} == {0}
    assert order.ranked(asks(1000)).priority == 1


def test_what_was_long_ago_is_forgotten() -> None:
    order = LargestLast(0.01)
    for output in (1000, 10):
        for _ in range(WINDOW):
            order.ranked(asks(output))
    assert order.ranked(asks(20)).priority == 1


@pytest.mark.parametrize(("given", "ranked"), [(-3, -2), (2**31 - 1, 2**31 - 1)])
def test_a_priority_that_was_given_stays_in_its_class(given: int, ranked: int) -> None:
    order = LargestLast(0.01)
    for _ in range(WINDOW):
        order.ranked(asks(10))
    assert order.ranked(asks(1000, priority=given)).priority == ranked


def test_size_is_tokens_held_times_steps() -> None:
    assert size_of(asks(10, prompt=100)) == sum(100 + step for step in range(10)) + 5
    assert size_of(asks(10, prompt=100, sequences=3)) == 3 * size_of(asks(10, prompt=100))


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.1, float("nan")])
def test_a_ratio_is_between_nobody_and_everybody(ratio: float) -> None:
    with pytest.raises(ValueError, match="in \\(0, 1\\)"):
        LargestLast(ratio)


def test_nobody_waits_too_long_for_being_large() -> None:
    def foretold(ttft_s: float) -> Prediction:
        return Prediction("x", ttft_s, ttft_s + 1.0, 0.01, 0.0, 0.0, Load(1, 1, 1, 1, 9, 1, 4))

    late, soon = foretold(2 * LONGEST_WAIT_S), foretold(1.0)
    assert waits_too_long([late, None, late])
    assert not waits_too_long([late, soon])
    assert not waits_too_long([None])
