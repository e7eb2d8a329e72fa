from math import inf

import pytest
from policy_cases import REQUEST, predicted, silent

from foretell.policy import Candidate, Holding, make_policy
from foretell.policy.baselines.foreseen import UNCERTAIN_S, ForeseenPolicy, uncertainty_s
from foretell.policy.baselines.predicted_latency import PredictedLatencyPolicy

FORESEEN = (0.1, 0.5, 0.1 + UNCERTAIN_S)
UNCERTAIN = (0.1, 0.5, 0.2 + UNCERTAIN_S)


def waiting(
    name: str, ttft_s: tuple[float, float, float] = FORESEEN, calibration_steps: int = 1000
) -> Candidate:
    """As good for a newcomer as its name is early; 10, 50 and 90% quantiles of the TTFT there."""
    candidate = predicted(name, float(ord(name)), calibration_steps=calibration_steps)
    assert candidate.prediction is not None
    quantiles = tuple(zip((0.1, 0.5, 0.9), ttft_s, strict=True))
    return candidate._replace(prediction=candidate.prediction._replace(ttft_quantiles=quantiles))


def consider(*candidates: Candidate) -> str | None:
    return ForeseenPolicy(PredictedLatencyPolicy()).consider(REQUEST, candidates, 0.0)


def test_the_other_policys_choice_is_taken_if_its_wait_is_foreseen() -> None:
    assert consider(waiting("a"), waiting("b")) == "a"
    assert consider(waiting("a"), waiting("b", UNCERTAIN)) == "a"


def test_else_the_request_is_held_though_others_would_be_certain() -> None:
    """They were not chosen: what is certain there is that it takes longer."""
    assert consider(waiting("a", UNCERTAIN), waiting("b")) is None


def test_past_its_bound_the_caller_gets_the_other_policys_choice() -> None:
    candidates = [waiting("b"), waiting("a", UNCERTAIN)]
    assert ForeseenPolicy(PredictedLatencyPolicy()).choose(REQUEST, candidates, 0.0) == "a"


@pytest.mark.parametrize("wait_s", [0.0, 30.0, inf])
def test_a_long_wait_that_is_certain_is_no_reason_to_hold(wait_s: float) -> None:
    assert consider(waiting("a", (wait_s,) * 3)) == "a"
    assert consider(predicted("a", 1.0, ttft_s=wait_s)) == "a"  # one figure: nothing to doubt


def test_what_may_never_come_is_uncertain() -> None:
    assert consider(waiting("a", (0.1, 0.5, inf))) is None


def test_nobody_waits_for_those_that_say_nothing() -> None:
    assert consider(silent("a"), silent("b", outstanding=1)) == "a"
    assert consider(silent("z"), waiting("a", UNCERTAIN)) == "z"  # scored as its peers, and a tie
    fresh = waiting("a", UNCERTAIN, calibration_steps=0)
    assert consider(fresh, waiting("b")) == "a"  # nor for what is not to be compared yet


def test_levels_are_interpolated() -> None:
    candidate = predicted("a", 1.0)
    assert candidate.prediction is not None
    quantiles = ((0.05, 1.0), (0.15, 2.0), (0.85, 3.0), (0.95, 5.0))
    found = uncertainty_s(candidate.prediction._replace(ttft_quantiles=quantiles))
    assert found == pytest.approx(4.0 - 1.5)


def test_it_is_a_policy_that_holds() -> None:
    assert isinstance(make_policy("foreseen"), Holding)
