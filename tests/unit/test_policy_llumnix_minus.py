from policy_cases import REQUEST, loaded, silent

from foretell.policy import Candidate
from foretell.policy.baselines import LlumnixMinusPolicy

# Every instance has 1,000 blocks.


def choose(candidates: list[Candidate], draw: float = 0.0) -> str:
    return LlumnixMinusPolicy().choose(REQUEST, candidates, draw)


def test_most_blocks_neither_used_nor_awaited_per_running_request_wins() -> None:
    # 40, 45 and 9 blocks each; without the queue c would win.
    candidates = [loaded("a", 600, 10), loaded("b", 450, 10, 100), loaded("c", 10, 10, 900)]
    assert choose(candidates) == "b"


def test_more_awaited_than_free_is_worse_than_nothing_free() -> None:
    candidates = [loaded("a", 1000, 10), loaded("b", 900, 10, 101), loaded("c", 900, 10, 150)]
    assert choose(candidates) == "a"
    assert choose(candidates[1:]) == "b"


def test_idle_instance_counts_as_one_running() -> None:
    assert choose([loaded("a", 0, 0, 6), loaded("b", 5, 1)]) == "b"
    assert choose([loaded("a", 0, 0, 4), loaded("b", 5, 1)]) == "a"


def test_draw_breaks_ties_among_the_most_only() -> None:
    candidates = [loaded("a", 900, 10), loaded("b", 400, 10, 100), loaded("c", 750, 5)]
    assert [choose(candidates, d) for d in (0.0, 0.49, 0.5, 0.999999)] == ["b", "b", "c", "c"]


def test_silent_instance_with_less_than_its_share_is_chosen() -> None:
    for awaited in (50, 950):  # 85 free blocks a request, or 5 too few
        known = [loaded(name, 100, 10, awaited, outstanding=9) for name in "ab"]
        assert choose([*known, silent("s", outstanding=8)]) == "s"
        assert choose([*known, silent("s", outstanding=10)]) == "a"


def test_single_candidate() -> None:
    assert choose([loaded("a", 900, 1, 900)], 0.999999) == "a"
    assert choose([silent("a")], 0.999999) == "a"
