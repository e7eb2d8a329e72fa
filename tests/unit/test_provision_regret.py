"""The same time again with one instance less and one more."""

from dataclasses import replace

import pytest

from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig, Slo
from foretell.provision import AnsweredRequest
from foretell.provision import regret as regrets
from foretell.provision.regret import Moment, Regret, RegretWindow, regret
from foretell.provision.rollout import EngineKind

KIND = EngineKind(
    EngineConfig("model", 16, 400, 4, 256, 1024),
    LinearStepTime((0.05, 0.0, 0.0, 0.0, 0.0, 0.0)).packed(),
)
"""4 seats and steps of 50 ms: an answer of 20 tokens takes a second, so 4 a second are served."""
SLO = Slo(1.0, 0.1)
ANSWER = AnsweredRequest(50, 25.0, 20, 0.5, 1.45)


def window(ready: int, rps: int, *, seconds: int = 900, **more: object) -> RegretWindow:
    """A constant rate with a decision every 5 seconds, and 300 seconds before."""
    moments = [
        Moment(at_s, ready, ready, 5 * rps if at_s > -300 else 0, **more)  # type: ignore[arg-type]
        for at_s in range(-300, seconds + 101, 5)
    ]
    return RegretWindow(0.0, float(seconds), moments, [ANSWER] * 10)


def of(given: RegretWindow) -> Regret:
    found = regret(given, KIND, SLO, 0.99)
    assert found is not None
    return found


def test_one_too_many_is_wasted_all_the_time() -> None:
    found = of(window(ready=4, rps=6))
    assert found.arrivals == 900 * 6
    assert found.instance_s == 4 * 900
    assert found.wasted_instance_s == 900
    assert found.within[1:] == (1.0, 1.0)
    assert found.saved_by_one_more == 0
    assert [each.instances for each in found.slices] == [4, 4, 4]


def test_one_too_few_is_what_one_more_would_have_saved() -> None:
    found = of(window(ready=1, rps=6))  # a third more than it serves: all wait longer and longer
    less, same, more = found.within
    assert less == same < 0.1  # where there was one, it is not taken away
    assert more > 0.9
    assert found.saved_by_one_more == sum(s.missed[1] - s.missed[2] for s in found.slices)
    assert found.saved_by_one_more > 0.8 * found.arrivals
    assert found.wasted_instance_s == 0


def test_the_right_number_is_neither() -> None:
    found = of(window(ready=2, rps=6))
    assert found.within[0] < 0.5
    assert found.within[1] > 0.9
    assert found.wasted_instance_s == 0


def test_waste_is_told_of_the_time_in_which_it_was() -> None:
    busy = window(ready=4, rps=13, seconds=1200)
    calm = [replace(m, arrived=10) if m.at_s > 600 else m for m in busy.moments]
    found = of(replace(busy, moments=calm))
    assert [each.wasted_instance_s for each in found.slices] == [
        0,
        0,
        0,
        300,
    ]


def test_an_idle_instance_more_than_one_is_wasted() -> None:
    assert of(window(ready=2, rps=0)).wasted_instance_s == 900
    assert of(window(ready=1, rps=0)).wasted_instance_s == 0


def test_where_nobody_was_ready_requests_wait_and_one_more_would_have_served_them() -> None:
    moments = [replace(m, ready=int(m.at_s >= 300), instances=1) for m in window(1, rps=2).moments]
    found = of(RegretWindow(0.0, 900.0, moments, [ANSWER]))
    assert found.within[1] < 0.7
    assert found.within[2] == 1.0
    assert found.saved_by_one_more >= 600


def test_forecasts_are_compared_with_what_came() -> None:
    found = of(window(ready=2, rps=6, expected_rps=9.0, ahead_s=60.0, predicted_within=1.0))
    assert found.arrivals_error == pytest.approx(0.5)
    assert found.arrivals_bias == pytest.approx(0.5)
    assert [each.expected_rps for each in found.slices] == [9.0] * 3
    assert found.predicted_within == 1.0
    assert found.measured_within == 1.0
    assert found.lengths_error == pytest.approx(0.25)
    without = of(window(ready=2, rps=6))
    assert (without.arrivals_error, without.predicted_within) == (None, None)


def test_the_same_window_gives_the_same_regret() -> None:
    given = window(ready=2, rps=7)
    assert of(given) == of(given)


def test_of_too_many_requests_the_latest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regrets, "MOST_ARRIVALS", 1200)
    found = of(window(ready=2, rps=4))
    assert found.arrivals <= 1200
    assert found.begins_s >= 600 - 5
    assert found.ends_s == 900


def test_without_decisions_or_answers_there_is_nothing_to_say() -> None:
    assert regret(replace(window(2, 4), answered=[]), KIND, SLO, 0.99) is None
    assert regret(replace(window(2, 4), moments=[]), KIND, SLO, 0.99) is None
    late = replace(window(2, 4), begins_s=-900.0, ends_s=-300.0)
    assert regret(late, KIND, SLO, 0.99) is None


def test_instances_that_come_and_go_without_end_are_refused() -> None:
    moments = [Moment(float(i), 1 + i % 2, 2, 1) for i in range(2000)]
    with pytest.raises(ValueError, match="came and went"):
        regret(RegretWindow(0.0, 2000.0, moments, [ANSWER]), KIND, SLO, 0.99)
