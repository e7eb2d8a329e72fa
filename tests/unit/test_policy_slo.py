from math import inf, nan

import pytest
from policy_cases import REQUEST, predicted, silent

from foretell.model import LengthEstimate, Prediction, RequestSpec, Slo
from foretell.policy import Candidate
from foretell.policy.slo import SloPolicy, lost, share_within, tpot_quantiles, worth
from foretell.policy.total_delay import TotalDelayPolicy
from foretell.policy.trust import CALIBRATED_STEPS

HINTED = REQUEST._replace(length=LengthEstimate(101.0, source="hint"))


def asking(ttft_s: float = inf, tpot_s: float = inf) -> RequestSpec:
    return HINTED._replace(slo=Slo(ttft_s, tpot_s))


def spread(
    instance_id: str,
    ttft_s: tuple[float, float],
    e2e_s: tuple[float, float] = (9.0, 9.0),
    added_e2e_s: float | None = 0.0,
) -> Candidate:
    """A candidate whose latencies are spread evenly between two values."""
    plain = predicted(instance_id, sum(e2e_s) / 2, sum(ttft_s) / 2, added_e2e_s=added_e2e_s)
    assert plain.prediction is not None
    answer = plain.prediction._replace(
        ttft_quantiles=((0.0, ttft_s[0]), (1.0, ttft_s[1])),
        e2e_quantiles=((0.0, e2e_s[0]), (1.0, e2e_s[1])),
    )
    return plain._replace(prediction=answer)


def answer_of(candidate: Candidate) -> Prediction:
    assert candidate.prediction is not None
    return candidate.prediction


def choose(request: RequestSpec, candidates: list[Candidate], draw: float = 0.0) -> str:
    return SloPolicy().choose(request, candidates, draw)


def test_the_likeliest_to_be_in_time_wins_not_the_soonest_on_average() -> None:
    gamble = spread("a", (0.0, 1.2))  # 0.6 s, but in time with probability 0.5 / 1.2 only
    steady = spread("b", (0.4, 0.9))
    sure = spread("c", (0.6, 0.7))
    assert choose(asking(0.5), [gamble, steady, sure]) == "a"
    assert choose(asking(0.7), [gamble, steady, sure]) == "c"


def test_tpot_counts_as_ttft_does() -> None:
    # 100 tokens after the first: 0.08 s each are 8 s.
    slow, fast = spread("a", (0.5, 0.5), (8.0, 9.0)), spread("b", (0.9, 0.9), (7.0, 8.5))
    assert choose(asking(1.0, 0.08), [slow, fast]) == "b"
    assert choose(asking(0.6, 0.08), [slow, fast]) == "a"  # half a chance against no chance
    assert worth(asking(0.6, 0.08), answer_of(slow)) == pytest.approx(0.5)


def test_what_others_lose_is_taken_off() -> None:
    # 10.5 s from the TTFT target to the last token's: a 5.25 s delay for others is half a request.
    request = asking(0.5, 0.1)
    dear, cheap = spread("a", (0.1, 0.1), added_e2e_s=5.25), spread("b", (0.3, 0.7))
    assert worth(request, answer_of(dear)) == pytest.approx(0.5)
    assert worth(request, answer_of(cheap)) == pytest.approx(0.5)
    assert choose(request, [spread("a", (0.1, 0.1), added_e2e_s=6.5), cheap]) == "b"
    assert choose(request, [spread("a", (0.1, 0.1), added_e2e_s=4.0), cheap]) == "a"


def test_first_tokens_of_others_are_lost_sooner() -> None:
    delayed = answer_of(predicted("a", 1.0))._replace(added_ttft_s=0.25, added_e2e_s=1.05)
    assert lost(Slo(0.5, 0.1), HINTED.length, delayed) == pytest.approx(0.5 + 0.1)
    assert lost(Slo(0.5), HINTED.length, delayed) == pytest.approx(0.5)
    assert lost(Slo(), HINTED.length, delayed) == 0.0
    gained = delayed._replace(added_ttft_s=-1.0, added_e2e_s=nan)
    assert lost(Slo(0.5, 0.1), HINTED.length, gained) == 0.0


def test_among_the_nearly_best_the_least_delay_in_all_wins() -> None:
    soon, cheap = predicted("a", 1.0, 0.3), predicted("b", 2.0, 0.1)
    assert choose(asking(0.5, 0.1), [soon, cheap]) == "b"
    nearly = spread("c", (0.0, 0.51))  # worth 0.98
    assert choose(asking(0.5, 0.1), [predicted("a", 9.0, 0.45), nearly]) == "c"


def test_without_targets_the_least_total_delay_wins() -> None:
    candidates = [
        predicted("a", 4.0, 0.5, added_e2e_s=5.0),
        predicted("b", 9.0, 1.0, added_e2e_s=3.0),
        predicted("c", 9.0, 1.0, added_e2e_s=3.0),
        silent("s", outstanding=3),
    ]
    for draw in (0.0, 0.5, 0.99):
        expected = TotalDelayPolicy().choose(REQUEST, candidates, draw)
        assert choose(REQUEST, candidates, draw) == expected


def test_without_a_chance_it_goes_where_others_lose_least() -> None:
    near, far = predicted("a", 5.0, 1.0, added_e2e_s=8.0), predicted("b", 5.0, 3.0)
    assert choose(asking(0.5, 0.1), [near, far]) == "b"


def test_never_is_the_worst_even_for_the_hopeless() -> None:
    never = predicted("a", inf, inf, added_e2e_s=0.0)
    assert choose(asking(0.5), [never, predicted("b", 9.0, 5.0)]) == "b"
    assert choose(asking(9.0), [never, silent("s", outstanding=9)]) == "s"


def test_silent_ones_stay_in_the_choice_with_a_typical_score() -> None:
    good, bad = predicted("a", 1.0, 0.2, outstanding=3), predicted("b", 9.0, 3.0, outstanding=3)
    assert choose(asking(0.5), [good, bad, silent("s", outstanding=1)]) == "s"
    assert choose(asking(0.5), [good, bad, silent("s", outstanding=9)]) == "a"
    assert choose(asking(0.5), [silent("s", 4), silent("t", 2)]) == "t"


def test_who_tells_nothing_of_others_gains_nothing_by_it() -> None:
    dear = predicted("a", 1.0, 0.1, outstanding=1, added_e2e_s=100.0)
    mute = predicted("b", 1.0, 0.1, outstanding=5, added_e2e_s=None)
    assert choose(asking(0.5, 0.1), [dear, mute]) == "a"


def test_a_twin_that_has_not_learned_is_not_compared_with_one_that_has() -> None:
    learned = predicted("a", 1.0, 1.0, outstanding=0, calibration_steps=CALIBRATED_STEPS)
    prior = predicted("b", 0.1, 0.1, outstanding=5, calibration_steps=0)
    assert choose(asking(0.5), [learned, prior]) == "a"


def test_a_share_is_linear_between_quantiles_in_any_order() -> None:
    ladder = ((0.1, 1.0), (0.5, 2.0), (0.9, 6.0))
    shares = [share_within(ladder, target) for target in (0.9, 1.0, 1.5, 2.0, 4.0, 6.0, inf)]
    assert shares == pytest.approx([0.0, 0.1, 0.3, 0.5, 0.7, 1.0, 1.0])
    assert share_within(((0.0, 3.0), (0.5, 1.0), (1.0, 3.0)), 2.0) == pytest.approx(0.5)
    assert share_within(((0.25, 1.0), (0.75, inf)), 5.0) == pytest.approx(0.25)
    assert share_within(((0.5, 1.0),), 1.0) == 1.0


def test_tpot_at_a_level_is_of_the_length_at_that_level() -> None:
    answer = answer_of(spread("a", (1.0, 1.0), (3.0, 11.0)))
    certain = LengthEstimate(11.0, source="hint")
    assert tpot_quantiles(certain, answer) == [(0.0, 0.2), (1.0, 1.0)]
    unsure = LengthEstimate(61.0, ((0.0, 21.0), (1.0, 101.0)), "model")
    assert tpot_quantiles(unsure, answer) == [(0.0, 0.1), (1.0, 0.1)]
    assert tpot_quantiles(LengthEstimate(9.0), answer) == ((0.5, answer.tpot_s),)
    endless = answer._replace(e2e_quantiles=((0.5, 2.0), (0.9, inf)))
    assert tpot_quantiles(certain, endless)[1] == (0.9, inf)


def test_draws_and_a_single_candidate() -> None:
    twins = [predicted("a", 1.0), predicted("b", 1.0), predicted("c", 9.0, 9.0)]
    assert [choose(asking(0.5), twins, d) for d in (0.0, 0.49, 0.5, 0.999999)] == list("aabb")
    assert choose(asking(0.5), [predicted("a", 3.0, 3.0)], 0.999999) == "a"
    assert choose(asking(0.5), [silent("a")], 0.999999) == "a"
