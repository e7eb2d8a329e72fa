"""How all policies with predictions degrade, which is one contract."""

from random import Random

import pytest
from policy_cases import REQUEST, predicted, silent

from foretell.policy import POLICIES, Candidate, make_policy
from foretell.policy.baselines import BASELINES
from foretell.policy.scoring import lowest_known


def predicted_e2e_s(candidate: Candidate) -> float | None:
    return None if candidate.prediction is None else candidate.prediction.e2e_s


def pick(candidates: list[Candidate], draw: float = 0.0) -> str:
    return lowest_known(candidates, [predicted_e2e_s(c) for c in candidates]).choose(draw)


def test_silent_score_is_the_median_scaled_by_outstanding() -> None:
    # Median score 2, median outstanding 3: a silent one with 1 outstanding scores 2 * 2/4 = 1.
    answers = [2.0, 1.01, 5.0]
    known = [predicted(str(i), e2e_s, outstanding=3) for i, e2e_s in enumerate(answers)]
    assert pick([*known, silent("s", 1)]) == "s"
    known[1] = predicted("1", 0.99, outstanding=3)
    assert pick([*known, silent("s", 1)]) == "1"


def test_if_nobody_answered_the_fewest_outstanding_win() -> None:
    candidates = [silent("a", 4), silent("b", 2), silent("c", 2)]
    assert [pick(candidates, d) for d in (0.0, 0.49, 0.5, 0.999999)] == ["b", "b", "c", "c"]


def test_silence_does_not_attract_when_all_others_are_idle() -> None:
    idle = [predicted("a", 0.0), predicted("b", 0.0)]
    assert {pick([*idle, silent("s", 7)], i / 10) for i in range(10)} == {"a", "b"}


def test_silent_instance_is_neither_starved_nor_flooded() -> None:
    """Four equal instances whose latency grows with their requests; one never answers."""
    draws, outstanding = Random(1), {"a": 0, "b": 0, "c": 0, "s": 0}
    for _ in range(400):
        candidates = [predicted(i, 1.0 + outstanding[i], outstanding=outstanding[i]) for i in "abc"]
        outstanding[pick([*candidates, silent("s", outstanding["s"])], draws.random())] += 1
    assert 95 <= outstanding["s"] <= 105


@pytest.mark.parametrize("name", [*POLICIES, *BASELINES])
def test_every_policy_is_found_by_its_name_and_is_deterministic(name: str) -> None:
    candidates = [predicted(i, 1.0, outstanding=2) for i in "abcd"]
    draws = [i / 17 for i in range(17)]
    runs = []
    for _ in range(2):
        policy = make_policy(name)
        assert policy.name == name
        runs.append([policy.choose(REQUEST, candidates, draw) for draw in draws])
    assert runs[0] == runs[1]
    assert set(runs[0]) == set("abcd")
