"""When predictions for an engine lose trust, and when they regain it."""

from foretell.engine.doubt import Doubt
from foretell.model import Load, Prediction

LOAD = Load(1, 0, 0, 1, 100, 0, 8)


def predicted(ttft_s: float, tpot_s: float) -> Prediction:
    return Prediction("e", ttft_s, ttft_s + 300 * tpot_s, tpot_s, 0.0, 0.0, LOAD)


def test_predictions_that_are_off_by_several_times_are_doubted_until_they_are_good_again() -> None:
    doubt = Doubt()
    for _ in range(40):
        doubt.add(predicted(0.1, 0.001), 0.2, 5.0, 300)
    assert doubt.is_doubted
    assert doubt.factor > 5
    for _ in range(40):
        doubt.add(predicted(0.2, 0.016), 0.2, 5.0, 300)
    assert not doubt.is_doubted


def test_a_length_that_was_not_foreseen_is_no_fault_of_the_engine() -> None:
    doubt = Doubt()
    for tokens in (3, 2000) * 20:
        doubt.add(predicted(0.1, 0.01), 0.1, 0.1 + 0.01 * (tokens - 1), tokens)
    assert doubt.factor < 1.01


def test_milliseconds_few_answers_and_rare_errors_raise_no_doubt() -> None:
    doubt = Doubt()
    for _ in range(40):
        doubt.add(predicted(0.002, 0.01), 0.02, 0.0, 0)
    assert not doubt.is_doubted
    doubt = Doubt()
    for number in range(200):
        doubt.add(predicted(0.1, 0.01), 3.0 if number % 3 == 0 else 0.1, 0.0, 0)
        assert not doubt.is_doubted


def test_a_first_token_that_comes_far_later_than_predicted_raises_doubt() -> None:
    doubt = Doubt()
    for _ in range(12):
        doubt.add(predicted(0.1, 0.01), 1.0, 0.0, 0)
    assert doubt.is_doubted
