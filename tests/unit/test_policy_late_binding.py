import pytest
from policy_cases import REQUEST, predicted, silent

from foretell.policy import Candidate, Holding, make_policy
from foretell.policy.baselines.late_binding import MOST_PREEMPTIONS, LateBindingPolicy
from foretell.policy.baselines.predicted_latency import PredictedLatencyPolicy

SEATS = 8


def seated(
    name: str, running: int = 4, waiting: int = 0, reserved: int = 0, *, preemptions: float = 0.0
) -> Candidate:
    """An instance of so many requests; each is as good for a newcomer as its name is early."""
    candidate = predicted(name, float(ord(name)))
    assert candidate.prediction is not None
    load = candidate.prediction.load._replace(
        running=running,
        waiting=waiting,
        reserved=reserved,
        max_num_seqs=SEATS,
    )
    prediction = candidate.prediction._replace(load=load, preemptions=preemptions)
    return candidate._replace(load=load, prediction=prediction)


def consider(*candidates: Candidate) -> str | None:
    return LateBindingPolicy(PredictedLatencyPolicy()).consider(REQUEST, candidates, 0.0)


def test_the_best_of_the_open_is_chosen_not_the_best_of_all() -> None:
    assert consider(seated("a"), seated("b")) == "a"
    assert consider(seated("a", SEATS, waiting=1), seated("b"), seated("c")) == "b"


@pytest.mark.parametrize(
    "full",
    [
        seated("a", SEATS, waiting=1),
        seated("a", SEATS, reserved=1),
        seated("a", SEATS - 1, reserved=2),
        seated("a", 1, waiting=1),
        seated("a", preemptions=2 * MOST_PREEMPTIONS),
    ],
    ids=["queue", "queue on its way", "more coming than seats", "no memory", "preemption"],
)
def test_where_nobody_is_open_the_request_is_held(full: Candidate) -> None:
    assert consider(full) is None
    assert consider(full, full, full) is None
    assert LateBindingPolicy().choose(REQUEST, [full], 0.0) == "a"


def test_the_seat_that_falls_free_next_is_given_away() -> None:
    assert consider(seated("a", SEATS)) == "a"
    assert consider(seated("a", SEATS - 2, reserved=2)) == "a"


def test_nothing_is_sent_to_the_silent_and_nothing_waits_for_them() -> None:
    full, mute = seated("a", SEATS, waiting=1), silent("m")
    assert consider(full, mute) is None
    assert consider(seated("b"), mute) == "b"
    assert consider(mute, silent("n")) == "m"


def test_it_is_a_policy_that_holds() -> None:
    assert isinstance(make_policy("late_binding"), Holding)
    assert not isinstance(make_policy("externality"), Holding)
