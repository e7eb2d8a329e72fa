from policy_cases import REQUEST, loaded, silent

from foretell.policy.round_robin import RoundRobinPolicy

THREE = [silent("c"), loaded("a", 900, 50), silent("b")]


def test_everyone_in_turn_whatever_the_load_or_the_order_of_the_list() -> None:
    policy = RoundRobinPolicy()
    turns = [policy.choose(REQUEST, THREE[i % 3 :] + THREE[: i % 3], 0.0) for i in range(7)]
    assert turns == ["a", "b", "c", "a", "b", "c", "a"]


def test_draw_chooses_only_where_to_start() -> None:
    policy = RoundRobinPolicy()
    assert [policy.choose(REQUEST, THREE, 0.5) for _ in range(3)] == ["b", "c", "a"]


def test_turn_survives_instances_that_come_and_go() -> None:
    policy = RoundRobinPolicy()
    assert policy.choose(REQUEST, THREE, 0.5) == "b"
    without_b = [silent("a"), silent("c")]
    assert policy.choose(REQUEST, without_b, 0.0) == "c"
    with_d = [*without_b, silent("d")]
    assert policy.choose(REQUEST, with_d, 0.0) == "d"
    assert policy.choose(REQUEST, without_b, 0.0) == "a"


def test_single_candidate() -> None:
    policy = RoundRobinPolicy()
    assert [policy.choose(REQUEST, [silent("a")], 0.9) for _ in range(2)] == ["a", "a"]
