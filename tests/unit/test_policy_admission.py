"""Which requests no engine can answer in time, and which are admitted all the same."""

from math import inf

from policy_cases import predicted

from foretell.model import NO_SLO, Prediction, Slo
from foretell.policy.admission import Unattainable, unattainable


def answers(*ttft_s: float) -> list[Prediction]:
    found = (predicted(str(i), value + 1.0, value).prediction for i, value in enumerate(ttft_s))
    return [prediction for prediction in found if prediction is not None]


def test_only_if_the_best_instance_is_too_late() -> None:
    assert unattainable(Slo(1.0), answers(3.0, 0.9, 5.0)) is None
    assert unattainable(Slo(1.0), answers(3.0, 1.0)) is None
    assert unattainable(Slo(1.0), answers(3.0, 2.5, 5.0)) == Unattainable(2.5, 1.0)


def test_only_if_even_its_most_optimistic_quantile_is() -> None:
    (late,) = answers(3.0)
    hopeful = late._replace(ttft_quantiles=((0.1, 0.8), (0.9, 9.0)))
    assert unattainable(Slo(1.0), [hopeful]) is None
    assert unattainable(Slo(0.5), [hopeful]) == Unattainable(0.8, 0.5)


def test_a_target_that_has_passed_is_unattainable() -> None:
    assert unattainable(Slo(1.0).after(1.5), answers(0.1)) == Unattainable(0.1, -0.5)


def test_never_without_a_target_or_a_prediction_or_hope_elsewhere() -> None:
    assert unattainable(NO_SLO, answers(99.0)) is None
    assert unattainable(Slo(tpot_s=0.001), answers(99.0)) is None
    assert unattainable(Slo(0.001), []) is None
    assert unattainable(Slo(0.001), answers(inf)) is None  # it can never run: that is not lateness


def test_when_to_come_again() -> None:
    assert Unattainable(2.5, 1.0).wait_s == 1.5
