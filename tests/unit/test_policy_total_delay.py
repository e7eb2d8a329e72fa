from math import inf, nan

from policy_cases import REQUEST, loaded, predicted, silent

from foretell.policy import Candidate
from foretell.policy.total_delay import TotalDelayPolicy
from foretell.policy.trust import CALIBRATED_STEPS


def choose(candidates: list[Candidate], draw: float = 0.0) -> str:
    return TotalDelayPolicy().choose(REQUEST, candidates, draw)


def test_least_delay_to_all_wins_not_the_least_to_the_new_request() -> None:
    # Before a usual wait is known, the mean of the candidates counts: 0.75 s.
    quick_but_dear = predicted("a", 4.0, 0.5, added_e2e_s=6.0)  # 0.5 * (1 + 2/3) ** 3 + 2 * 6 s
    slow_but_cheap = predicted("b", 6.0, 1.0, added_e2e_s=0.75)  # 1 * (1 + 4/3) ** 3 + 1.5 s
    assert choose([quick_but_dear, slow_but_cheap]) == "b"
    assert choose([quick_but_dear, predicted("b", 6.0, 1.0, added_e2e_s=0.85)]) == "a"


def test_a_long_wait_weighs_more_than_its_seconds() -> None:
    # 3 * (1 + 3 / 1.5) ** 3 = 81 s of waiting against none, and 2 * 40 s for others.
    buried, dear = predicted("a", 5.0, 3.0), predicted("b", 5.0, 0.0, added_e2e_s=40.0)
    assert choose([buried, dear]) == "b"
    assert choose([buried, predicted("b", 5.0, 0.0, added_e2e_s=41.0)]) == "a"


def test_how_much_a_wait_weighs_depends_on_the_waits_before() -> None:
    long_wait, dear = predicted("a", 5.0, 3.0), predicted("b", 5.0, 1.0, added_e2e_s=10.0)
    for usual_s, chosen in ((0.1, "b"), (10.0, "a")):
        policy = TotalDelayPolicy()
        for _ in range(10):
            policy.choose(REQUEST, [predicted("a", 30.0, usual_s, added_e2e_s=0.0)], 0.0)
        assert policy.choose(REQUEST, [long_wait, dear], 0.0) == chosen


def test_short_waits_weigh_little_where_engines_are_of_several_kinds() -> None:
    def chosen(total_blocks: int) -> str:
        policy = TotalDelayPolicy()
        for _ in range(10):
            policy.choose(REQUEST, [predicted("a", 5.0, 0.01)], 0.0)
        dear = predicted("b", 5.0, 0.01, added_e2e_s=0.3, total_blocks=total_blocks)
        return policy.choose(REQUEST, [predicted("a", 5.0, 0.1), dear], 0.0)

    # 0.1 s weighs 133 s if 0.01 s is usual, and 0.46 s if 0.15 s is.
    assert (chosen(1000), chosen(9000)) == ("b", "a")


def test_time_without_tokens_counts_as_waiting_and_slow_decoding_does_not() -> None:
    def chosen(added_e2e_s: float, preempted_s: float) -> str:
        slow = predicted("a", 6.0, 1.0, preempted_s=preempted_s)
        fast = predicted("b", 5.0, 1.0, added_e2e_s=added_e2e_s)
        return choose([slow, fast])

    # If 1 s is usual, 2 s weigh 54 s, 1.5 s 23.4 s, and 1 s 8 s.
    assert (chosen(23.05, 1.0), chosen(22.95, 1.0)) == ("a", "b")
    assert (chosen(7.75, 0.5), chosen(7.7, 0.5)) == ("a", "b")
    assert chosen(0.1, 0.0) == "a"


def test_a_slow_engine_with_room_is_better_than_full_ones_that_preempt() -> None:
    slow = predicted("slow", 20.0, 1.0)
    assert choose([slow, predicted("full", 12.0, 1.0, preempted_s=2.0)]) == "slow"


def test_slow_decoding_counts_as_far_as_the_fastest_engine_is_free() -> None:
    def chosen(added_e2e_s: float, running: int, preempted_s: float = 0.0) -> str:
        slow = predicted("slow", 9.0, 1.0, running=0, preempted_s=preempted_s)
        fast = predicted("fast", 5.0, 1.0, added_e2e_s=added_e2e_s, running=running)
        return choose([slow, fast])

    assert (chosen(1.95, 0), chosen(2.05, 0)) == ("fast", "slow")  # all of the 4 s
    assert (chosen(0.45, 32), chosen(0.55, 32)) == ("fast", "slow")  # a quarter of it
    assert chosen(0.1, 64) == chosen(0.1, 80) == "slow"
    # Half of it is waiting, which weighs 3 * (1 + 3) ** 3 - 8 s more, the other half decoding.
    assert (chosen(92.95, 0, 2.0), chosen(93.05, 0, 2.0)) == ("fast", "slow")


def test_first_and_last_tokens_of_others_count() -> None:
    later_start = predicted("a", 1.0, added_e2e_s=1.0, added_ttft_s=3.0)
    assert choose([later_start, predicted("b", 1.0, added_e2e_s=2.0, added_ttft_s=0.5)]) == "b"


def test_draw_breaks_ties_among_the_least_only() -> None:
    candidates = [
        predicted("a", 1.0, added_e2e_s=2.0),
        predicted("b", 2.0, added_e2e_s=3.0),
        predicted("c", 9.0, added_e2e_s=2.0),
    ]
    assert [choose(candidates, d) for d in (0.0, 0.49, 0.5, 0.999999)] == ["a", "a", "c", "c"]


def test_helping_others_is_good_but_never_better_than_free() -> None:
    helpful = predicted("a", 3.0, 1.0, added_e2e_s=-17.975)
    assert choose([helpful, predicted("b", 1.0, 0.1)]) == "a"
    free = [predicted("a", 3.0, added_e2e_s=-9.0), predicted("b", 3.0, added_e2e_s=-4.0)]
    assert [choose(free, draw) for draw in (0.0, 0.9)] == ["a", "b"]


def test_a_prediction_that_tells_nothing_of_the_others_is_no_answer() -> None:
    old = predicted("old", 0.1, outstanding=5, added_e2e_s=None)
    assert choose([old, predicted("b", 1.0, outstanding=1)]) == "b"
    assert choose([loaded("a", outstanding=3), predicted("b", 9.0, outstanding=0)]) == "b"
    broken = predicted("a", 1.0, outstanding=5, added_e2e_s=nan)
    assert choose([broken, predicted("b", 1.0, outstanding=1)]) == "b"
    both = [
        predicted(name, 1.0, outstanding=n, added_e2e_s=None) for name, n in (("a", 2), ("b", 1))
    ]
    assert choose(both) == "b"


def test_a_twin_that_has_not_learned_is_not_compared_with_one_that_has() -> None:
    fast = predicted("learned", 1.0, 1.0, outstanding=2, calibration_steps=CALIBRATED_STEPS)
    assert choose([fast, predicted("prior", 5.0, 5.0, calibration_steps=0)]) == "prior"


def test_never_is_an_answer_and_the_worst_one() -> None:
    never = predicted("a", inf, inf, added_e2e_s=0.0)
    ruinous = predicted("a", 1.0, added_e2e_s=inf)
    for worst in (never, ruinous):
        assert choose([worst, predicted("b", 99.0, 50.0, outstanding=9)]) == "b"
        assert choose([worst, silent("s", outstanding=50)]) == "s"


def test_single_candidate() -> None:
    assert choose([predicted("a", 3.0)], 0.999999) == "a"
    assert choose([silent("a")], 0.999999) == "a"
