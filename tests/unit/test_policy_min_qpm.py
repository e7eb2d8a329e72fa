from policy_cases import REQUEST

from foretell.policy import Candidate
from foretell.policy.baselines import MinQpmPolicy


def choose(candidates: list[Candidate], draw: float = 0.0) -> str:
    return MinQpmPolicy().choose(REQUEST, candidates, draw)


def sent(instance_id: str, dispatched_last_minute: int, outstanding: int = 0) -> Candidate:
    return Candidate(instance_id, outstanding, dispatched_last_minute)


def test_fewest_dispatches_win_however_many_are_still_running() -> None:
    assert choose([sent("a", 30, 0), sent("b", 10, 10), sent("c", 20, 5)]) == "b"


def test_draw_breaks_ties_among_the_least_only() -> None:
    candidates = [sent("a", 9), sent("b", 2), sent("c", 2)]
    assert [choose(candidates, d) for d in (0.0, 0.49, 0.5, 0.999999)] == ["b", "b", "c", "c"]


def test_single_candidate() -> None:
    assert choose([sent("a", 100)], 0.999999) == "a"
