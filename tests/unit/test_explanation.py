"""Why a request went where it went: the numbers shown decide, and the sentence says so."""

from math import inf
from random import Random

import pytest
from policy_cases import REQUEST, predicted, silent

from foretell.model import RequestSpec, Slo
from foretell.placement.decision import Decision, decide
from foretell.placement.explanation import Explanation, explain
from foretell.policy import POLICIES, Candidate, make_policy
from foretell.policy.baselines import BASELINES

TARGETS = RequestSpec(
    "r1", REQUEST.prompt_tokens, 0, REQUEST.length, slo=Slo(ttft_s=0.4, tpot_s=0.02)
)


def told_choice(told: Explanation) -> str:
    """Choose by the scores shown: the least; among equals, the draw, in the order shown."""
    compared = [one for one in told.candidates if one.score is not None]
    least = min((one.score, one.tie_break) for one in compared)
    tied = [one.instance_id for one in compared if (one.score, one.tie_break) == least]
    return tied[int(told.draw * len(tied))]


def some_candidates(draws: Random) -> list[Candidate]:
    """Random instances: some silent, hopeless, equal, or not yet calibrated."""
    found = []
    for name in draws.sample("abcd", draws.randint(1, 4)):
        outstanding = draws.randint(0, 3)
        if draws.random() < 0.15:
            found.append(silent(name, outstanding))
            continue
        ttft_s = draws.choice([0.05, 0.1, 0.5, 2.0, inf])
        found.append(
            predicted(
                name,
                ttft_s + draws.choice([1.0, 3.0]),
                ttft_s,
                outstanding,
                draws.choice([0, 1000]),
                added_e2e_s=draws.choice([0.0, 0.5, 4.0, None]),
                preempted_s=draws.choice([0.0, 0.5]),
            )
        )
    return found


def decided(candidates: list[Candidate], request: RequestSpec = REQUEST) -> Explanation:
    policy = make_policy("slo")
    return explain(policy, decide(policy, request, candidates, 0.0))


@pytest.mark.parametrize("name", [*POLICIES, *BASELINES])
def test_what_is_told_afterwards_reproduces_each_of_200_choices(name: str) -> None:
    draws, policy = Random(7), make_policy(name)
    made: list[Decision] = [
        decide(policy, draws.choice([REQUEST, TARGETS]), some_candidates(draws), draws.random())
        for _ in range(200)
    ]
    for decision in made:
        told = explain(policy, decision)
        assert told_choice(told) == told.chosen == decision.chosen.instance_id
        assert told.chosen in told.because
        assert len(told.candidates) == len(decision.candidates)


def test_the_sentence_names_the_part_that_makes_the_difference() -> None:
    near, dear = predicted("a", 3.0, 0.1), predicted("b", 3.0, 0.1, added_e2e_s=2.0)
    assert decided([dear, near]).because == (
        "a is the best by delay in total, in seconds: 0.8 against 4.8 of b, "
        "mostly by what it costs the others there, 0 s against 4 s"
    )
    late = predicted("b", 3.0, 2.0)
    assert decided([late, near]).because.endswith("mostly by its own wait, 0.1 s against 2 s")
    fast, slow = predicted("a", 3.0, 0.1, running=0), predicted("b", 9.0, 0.1, running=0)
    assert decided([slow, fast]).because.endswith(
        "mostly by what its own decoding takes longer, 0 s against 6 s"
    )


def test_who_cannot_meet_the_targets_is_told_as_left_out() -> None:
    told = decided([predicted("a", 1.0, 0.1, added_e2e_s=0.5), predicted("b", 3.0, 2.0)], TARGETS)
    first, second = told.candidates
    assert (first.compared, second.compared, second.score) == (True, False, None)
    assert first.worth is not None
    assert second.worth is not None
    assert first.worth > second.worth
    assert told.because == ("1 of 2 are less likely to meet targets; of the others only a is left")


def test_who_is_silent_is_told_as_such() -> None:
    told = decided([silent("a"), silent("b", 2)])
    assert told.because == "a has the fewest requests for its size: there was no prediction"
    assert not any(one.score_known for one in told.candidates)
    told = decided([silent("a"), predicted("b", 3.0, 0.3, outstanding=5)])
    assert told.because.endswith("its own is not known, and was taken from the others'")


def test_equals_are_told_as_drawn_and_one_alone_as_alone() -> None:
    assert decided([predicted("a", 1.0), predicted("b", 1.0)]).because == (
        "a was drawn from 2 that are equally good by delay in total, in seconds"
    )
    assert decided([predicted("a", 1.0)]).because == "a was the only candidate"


def test_a_request_that_was_called_back_says_from_what() -> None:
    policy = make_policy("slo")
    decision = decide(policy, REQUEST, [predicted("a", 1.0), predicted("b", 2.0, 1.0)], 0.0)
    told = explain(policy, decision._replace(waited_s=1.5))
    assert told.because.startswith("recalled from a queue, with 1.5 s left to wait there: a is the")


def test_a_policy_of_ones_own_need_not_compare_scores() -> None:
    class Mine:
        name = "mine"
        needs = make_policy("round_robin").needs

        def choose(self, request: RequestSpec, candidates: list[Candidate], draw: float) -> str:
            return candidates[-1].instance_id

    policy = Mine()
    told = explain(policy, decide(policy, REQUEST, [silent("a"), silent("b")], 0.0))  # type: ignore[arg-type]
    assert told.because == "b was chosen by mine, which compares no scores"
    assert [one.score for one in told.candidates] == [None, None]
