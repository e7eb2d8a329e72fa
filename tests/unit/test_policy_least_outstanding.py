from policy_cases import REQUEST, loaded, silent

from foretell.policy import Candidate
from foretell.policy.least_outstanding import LeastOutstandingPolicy


def choose(candidates: list[Candidate], draw: float = 0.0) -> str:
    return LeastOutstandingPolicy().choose(REQUEST, candidates, draw)


def test_fewest_outstanding_wins() -> None:
    assert choose([silent("a", 3), silent("b", 1), silent("c", 2)]) == "b"


def test_what_predictors_say_does_not_matter() -> None:
    assert choose([loaded("a", 900, 50, outstanding=1), silent("b", 2)]) == "a"


def test_draw_breaks_ties_among_the_least_only() -> None:
    candidates = [silent("a", 1), silent("b", 5), silent("c", 1)]
    assert [choose(candidates, d) for d in (0.0, 0.49, 0.5, 0.999999)] == ["a", "a", "c", "c"]


def test_single_candidate() -> None:
    assert choose([silent("a", 9)], 0.999999) == "a"
