"""The bench of a cluster to which the largest requests never come."""

from bench.placement.without import without_largest
from foretell.workload import Arrival


def arrival(number: int, output_tokens: int) -> Arrival:
    return Arrival(float(number), 100, output_tokens, f"r{number}")


def test_the_largest_hundredth_is_left_out_and_the_others_come_when_they_did() -> None:
    every = [arrival(i, 300 if i in (7, 150) else 10 + i % 5) for i in range(200)]
    assert without_largest(every) == [a for i, a in enumerate(every) if i not in (7, 150)]


def test_equals_are_told_apart_by_their_order() -> None:
    every = [arrival(i, 50) for i in range(300)]
    assert without_largest(every) == every[:297]
