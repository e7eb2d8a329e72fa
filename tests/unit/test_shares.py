"""Fair sharing of the engines: whose request is next, and what counts as room."""

from foretell.model import LengthEstimate, Load, RequestSpec
from foretell.placement.shares import PRESENT_S, Shares, fullness, has_room, work_of
from foretell.policy import Urgency


def load(running: int = 0, waiting: int = 0, reserved: int = 0, used: int = 0) -> Load:
    return Load(running, waiting, reserved, used, 100, 0, 40)


def test_answers_count_twice_as_much_as_prompts_and_every_sequence_counts() -> None:
    assert work_of(RequestSpec("r", 100, 0, LengthEstimate(30.0), sequences=2)) == 220.0


def test_room_is_where_nobody_waits_and_seats_and_memory_are_free() -> None:
    assert has_room(None)
    assert has_room(load(37, used=74))
    assert not has_room(load(38))
    assert not has_room(load(1, used=75))
    assert not has_room(load(1, waiting=1))


def test_few_are_on_their_way_at_once() -> None:
    assert has_room(load(16, reserved=2))
    assert not has_room(load(16, reserved=3))


def test_a_tenant_by_itself_is_never_over_its_share() -> None:
    shares = Shares()
    shares.arrived("a", 0.0)
    shares.sent("a", 1e6)
    assert not shares.is_over("a")
    shares.arrived("b", 1.0)
    assert shares.is_over("a")
    assert not shares.is_over("b")


def test_who_has_not_come_for_a_minute_has_no_share() -> None:
    shares = Shares()
    for name in ("a", "b"):
        shares.arrived(name, 0.0)
    shares.sent("a", 10.0)
    assert shares.is_over("a")
    shares.arrived("a", 1.1 * PRESENT_S)
    assert not shares.is_over("a")


def test_who_has_work_in_the_engines_keeps_its_share() -> None:
    shares = Shares()
    for name in ("b", "a"):
        shares.arrived(name, 0.0)
    shares.sent("a", 20.0)
    shares.sent("b", 10.0)
    shares.arrived("a", 1.1 * PRESENT_S)
    assert shares.is_over("a")


def test_the_tenant_with_the_least_work_goes_first_and_its_most_urgent_request() -> None:
    shares = Shares()
    for name, work in (("a", 10.0), ("b", 5.0), ("c", 0.0)):
        shares.arrived(name, 0.0)
        shares.sent(name, work)
    shares.hold("a", Urgency(-1, 0.0), "a1")
    shares.hold("b", Urgency(0, 0.0), "b1")
    shares.hold("b", Urgency(0, 1.0), "b2")
    shares.hold("b", Urgency(-1, 2.0), "b3")
    shares.leave("b", "b1")
    taken = []
    while (key := shares.take_next()) is not None:
        taken.append(key)
    assert taken == ["b3", "b2", "a1"]


def test_an_engine_is_as_full_as_its_seats_or_its_memory() -> None:
    assert fullness(None) == 0.0
    assert fullness(load(10, reserved=10, used=20)) == 0.5
    assert fullness(load(4, used=75)) == 0.75


def test_as_many_engines_are_left_to_others_as_their_work_fills_by_a_quarter() -> None:
    shares = Shares()
    for name, work in (("loud", 60.0), ("quiet", 30.0), ("silent", 0.0)):
        shares.arrived(name, 0.0)
        shares.sent(name, work)
    full, half = load(30, used=75), load(20, used=10)
    assert shares.left_to_others([half] * 6) == 4  # a third of 6 half-full engines: 1 engine's work
    assert shares.left_to_others([full] * 12) == 11  # one is open to all tenants
    assert shares.left_to_others([full, full]) == 1
    assert shares.left_to_others([full]) == 0
    assert shares.left_to_others([load(1)] * 4) == 0  # work this small is in no tenant's way
    assert shares.left_to_others([]) == 0
    assert shares.left_to_others([None] * 3) == 0
