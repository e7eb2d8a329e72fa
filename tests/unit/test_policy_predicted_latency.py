from math import inf, nan

from policy_cases import REQUEST, loaded, predicted, silent

from foretell.policy import Candidate
from foretell.policy.baselines import PredictedLatencyPolicy
from foretell.policy.trust import CALIBRATED_STEPS


def choose(candidates: list[Candidate], draw: float = 0.0) -> str:
    return PredictedLatencyPolicy().choose(REQUEST, candidates, draw)


def test_least_e2e_wins_whatever_its_ttft() -> None:
    candidates = [predicted("a", 3.0, 0.1), predicted("b", 1.5, 1.0), predicted("c", 2.0, 0.2)]
    assert choose(candidates) == "b"


def test_draw_breaks_ties_among_the_least_only() -> None:
    candidates = [predicted("a", 1.0), predicted("b", 2.0), predicted("c", 1.0)]
    assert [choose(candidates, d) for d in (0.0, 0.49, 0.5, 0.999999)] == ["a", "a", "c", "c"]


def test_load_is_no_prediction() -> None:
    assert choose([loaded("a", outstanding=3), predicted("b", 9.0, outstanding=0)]) == "b"


def test_a_pessimistic_prior_does_not_starve_beside_a_twin_that_has_learned() -> None:
    fast = predicted("learned", 1.0, outstanding=2, calibration_steps=CALIBRATED_STEPS)
    prior = predicted("prior", 5.0, outstanding=0, calibration_steps=CALIBRATED_STEPS - 1)
    assert choose([fast, prior]) == "prior"
    busy = predicted("prior", 5.0, outstanding=4, calibration_steps=0)
    assert choose([fast, busy]) == "learned"
    # Among priors alone, predictions are compared as they are.
    assert choose([predicted("a", 2.0, calibration_steps=0), busy]) == "a"


def test_never_is_an_answer_and_the_worst_one() -> None:
    assert choose([predicted("a", inf), predicted("b", 99.0, outstanding=9)]) == "b"
    assert choose([predicted("a", inf), silent("s", outstanding=50)]) == "s"
    assert choose([predicted("a", inf, outstanding=2), predicted("b", inf, outstanding=1)]) == "b"


def test_nan_is_no_answer() -> None:
    assert choose([predicted("a", nan, outstanding=5), predicted("b", 1.0, outstanding=1)]) == "b"


def test_single_candidate() -> None:
    assert choose([predicted("a", 3.0)], 0.999999) == "a"
    assert choose([silent("a")], 0.999999) == "a"
