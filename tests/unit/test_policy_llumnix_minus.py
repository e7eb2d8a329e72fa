from policy_cases import REQUEST, loaded, silent

from foretell.policy import Candidate
from foretell.policy.llumnix_minus import LlumnixMinusPolicy


def choose(candidates: list[Candidate], draw: float = 0.0) -> str:
    return LlumnixMinusPolicy().choose(REQUEST, candidates, draw)


def test_least_blocks_used_and_awaited_per_running_request_wins() -> None:
    # 10, 9 and 11 blocks each; without the queue c would win.
    candidates = [loaded("a", 100, 10), loaded("b", 80, 10, 10), loaded("c", 10, 10, 100)]
    assert choose(candidates) == "b"


def test_idle_instance_counts_as_one_running() -> None:
    assert choose([loaded("a", 0, 0, 6), loaded("b", 10, 2)]) == "b"
    assert choose([loaded("a", 0, 0, 4), loaded("b", 10, 2)]) == "a"


def test_draw_breaks_ties_among_the_least_only() -> None:
    candidates = [loaded("a", 90, 10), loaded("b", 40, 10, 10), loaded("c", 25, 5)]
    assert [choose(candidates, d) for d in (0.0, 0.49, 0.5, 0.999999)] == ["b", "b", "c", "c"]


def test_silent_instance_with_less_than_its_share_is_chosen() -> None:
    known = [loaded("a", 50, 10, 50, outstanding=9), loaded("b", 100, 10, outstanding=9)]
    assert choose([*known, silent("s", outstanding=8)]) == "s"
    assert choose([*known, silent("s", outstanding=10)]) == "a"


def test_single_candidate() -> None:
    assert choose([loaded("a", 900, 1, 900)], 0.999999) == "a"
    assert choose([silent("a")], 0.999999) == "a"
