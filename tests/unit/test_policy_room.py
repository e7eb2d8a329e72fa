"""The price of room by kind of engine: none among equals, and higher the fuller a kind is."""

import pytest

from foretell.model import Load, Prediction
from foretell.policy.room import free_share, kinds, prices_s


def answer(instance_id: str, used_blocks: int, total_blocks: int, seats: int = 48) -> Prediction:
    load = Load(0, 0, 0, used_blocks, total_blocks, 0, seats)
    return Prediction(instance_id, 0.1, 10.0, 0.02, 0.0, 0.1, load, 0)


def test_engines_of_one_kind_have_no_prices() -> None:
    told = [answer("a", 100, 1000), answer("b", 900, 1003), answer("c", 1000, 1040)]
    assert set(prices_s(kinds(told)).values()) == {0.0}


def test_the_fuller_kind_costs_by_the_fourth_power_of_its_mean_occupancy() -> None:
    told = [
        answer("small", 500, 1000),
        answer("large-0", 2400, 3000),
        answer("large-1", 3000, 3000),
    ]
    assert prices_s(kinds(told)) == pytest.approx(
        {"small": 0.0, "large-0": 10 * (0.9**4 - 0.5**4), "large-1": 10 * (0.9**4 - 0.5**4)}
    )


def test_equal_memory_with_other_seats_is_another_kind() -> None:
    prices = prices_s(kinds([answer("few", 800, 1000, seats=24), answer("many", 100, 1000)]))
    assert prices["many"] == 0.0
    assert prices["few"] > 0.0


def test_seats_are_room_too() -> None:
    assert free_share(Load(24, 6, 6, 0, 1000, 0, 48)) == pytest.approx(0.25)
    assert free_share(Load(48, 9, 0, 0, 1000, 0, 48)) == 0.0


def test_nobody_told_anything() -> None:
    assert prices_s(kinds([])) == {}
