"""The estimates from the cells of an `Experience`, and from the levels where lengths lay."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.length import SurvivalCurve
from foretell.length.bins import bin_at, bin_of
from foretell.length.experience import MEMORY, Experience
from foretell.length.recalibration import Recalibration

CELLS = 8
EVEN = np.arange(1, CELLS + 1) / CELLS
seen_lengths = st.lists(
    st.tuples(st.integers(1, CELLS), st.booleans()), min_size=1, max_size=40
).filter(lambda seen: not all(censored for _, censored in seen))


@given(seen_lengths)
def test_without_a_prior_or_forgetting_it_is_the_product_limit_estimate(
    seen: list[tuple[int, bool]],
) -> None:
    experience = Experience(CELLS)
    for length, censored in seen:
        if censored:
            experience.cut(length - 1, 1.0)
        else:
            experience.end(length - 1)
    ended = [length for length, censored in seen if not censored]
    cut = [length for length, censored in seen if censored]
    curve = SurvivalCurve(ended, cut, 1.0)
    below = experience.below(EVEN, 1e-9)
    for length in range(1, max(ended)):
        assert 1.0 - below[length - 1] == pytest.approx(curve.survival(length), abs=1e-6)


@given(st.integers(1, 100_000))
def test_the_bin_of_one_length_is_that_of_many(tokens: int) -> None:
    assert bin_at(tokens) == bin_of(tokens)


def test_an_answer_cut_within_a_cell_was_at_risk_for_what_it_passed() -> None:
    experience = Experience(2)
    experience.end(0)
    for _ in range(4):
        experience.cut(0, 0.5)
    assert experience.below(np.array([0.5, 1.0]), 1e-9)[0] == pytest.approx(1 / 3)


def test_the_prior_counts_as_so_many_answers() -> None:
    experience = Experience(CELLS)
    assert experience.below(EVEN, 10.0) == pytest.approx(EVEN)
    for _ in range(10):
        experience.end(0)
    assert experience.below(EVEN, 10.0)[0] == pytest.approx((10 + 10 / CELLS) / 20)


def test_old_answers_fade_and_numbers_stay_small() -> None:
    experience = Experience(2)
    for cell, answers in ((0, 30_000), (1, int(MEMORY))):
        for _ in range(answers):
            experience.forget()
            experience.end(cell)
    first = experience.below(np.array([0.5, 1.0]), 1e-9)[0]
    assert first == pytest.approx(np.exp(-1.0), rel=0.01)


def test_levels_at_which_lengths_lie_are_learnt() -> None:
    recalibration = Recalibration()
    for level in np.sqrt(np.random.default_rng(1).random(3000)):  # a share u^2 lies below u
        recalibration.end(level, level)
    corrected = recalibration.correct(np.array([0.25, 0.5, 0.75]))
    assert corrected == pytest.approx([0.0625, 0.25, 0.5625], abs=0.04)


def test_answers_cut_at_any_level_say_nothing_against_the_levels() -> None:
    rng = np.random.default_rng(2)
    recalibration = Recalibration()
    for level, limit in rng.random((4000, 2)):
        if limit < level:
            recalibration.cut(limit)
        else:
            recalibration.end(level, level)
    assert recalibration.correct(np.array([0.25, 0.5])) == pytest.approx([0.25, 0.5], abs=0.06)


def test_a_token_that_spans_levels_counts_for_all_of_them() -> None:
    recalibration = Recalibration()
    for _ in range(100):
        recalibration.end(0.0, 1.0)
    assert recalibration.correct(EVEN) == pytest.approx(EVEN)


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 0.5), st.booleans()), max_size=30),
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=10),
)
def test_recalibration_maps_levels_monotonely(
    seen: list[tuple[float, float, bool]], levels: list[float]
) -> None:
    recalibration = Recalibration()
    for lower, width, censored in seen:
        if censored:
            recalibration.cut(lower)
        else:
            recalibration.end(lower, min(1.0, lower + width))
    mapped = recalibration.correct(np.array([0.0, *sorted(levels), 1.0]))
    assert mapped[0] == 0.0
    assert mapped[-1] == 1.0
    assert np.all(np.diff(mapped) >= 0.0)
