"""Which online requests are expected at an engine."""

from math import inf

from foretell.cosched.online import ONLINE_FOR_S, ExpectedOnline


def test_nobody_is_expected_before_one_came() -> None:
    assert ExpectedOnline().ttft_s(0.0) == inf


def test_the_least_target_counts_while_others_come() -> None:
    expected = ExpectedOnline()
    expected.came(2.0, 0.0)
    expected.came(1.0, 10.0)
    expected.came(3.0, 20.0)
    assert expected.ttft_s(20.0 + ONLINE_FOR_S) == 1.0
    assert expected.ttft_s(21.0 + ONLINE_FOR_S) == inf
    expected.came(4.0, 30.0 + ONLINE_FOR_S)
    assert expected.ttft_s(30.0 + ONLINE_FOR_S) == 4.0


def test_one_without_target_wants_to_find_no_offline_work() -> None:
    expected = ExpectedOnline()
    expected.came(1.0, 0.0)
    expected.came(inf, 1.0)
    expected.came(1.0, 200.0)
    assert expected.ttft_s(1.0 + ONLINE_FOR_S) == 0.0
    assert expected.ttft_s(2.0 + ONLINE_FOR_S) == 1.0
