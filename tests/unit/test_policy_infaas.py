from policy_cases import REQUEST, loaded, silent

from foretell.policy import Candidate
from foretell.policy.baselines import InfaasPolicy

# Every instance has 1,000 blocks.


def choose(candidates: list[Candidate], draw: float = 0.0) -> str:
    return InfaasPolicy().choose(REQUEST, candidates, draw)


def test_most_free_blocks_per_running_request_wins() -> None:
    # 50, 20 and 47.5 blocks each; by used blocks each (50, 5, 5) the first would lose.
    assert choose([loaded("a", 500, 10), loaded("b", 200, 40), loaded("c", 50, 20)]) == "a"


def test_idle_instance_counts_as_one_running() -> None:
    assert choose([loaded("a", 8, 0), loaded("b", 5, 1)]) == "b"
    assert choose([loaded("a", 0, 0), loaded("b", 5, 1)]) == "a"


def test_queued_prompts_do_not_count() -> None:
    assert choose([loaded("a", 100, 10, 900), loaded("b", 110, 10, 0)]) == "a"


def test_draw_breaks_ties_among_the_most_only() -> None:
    candidates = [loaded("a", 500, 10), loaded("b", 900, 10), loaded("c", 750, 5)]
    assert [choose(candidates, d) for d in (0.0, 0.49, 0.5, 0.999999)] == ["a", "a", "c", "c"]


def test_silent_instance_with_less_than_its_share_is_chosen() -> None:
    known = [loaded("a", 100, 10, outstanding=9), loaded("b", 100, 10, outstanding=9)]
    assert choose([*known, silent("s", outstanding=8)]) == "s"
    assert choose([*known, silent("s", outstanding=10)]) == "a"


def test_single_candidate() -> None:
    assert choose([loaded("a", 900, 1)], 0.999999) == "a"
    assert choose([silent("a")], 0.999999) == "a"
